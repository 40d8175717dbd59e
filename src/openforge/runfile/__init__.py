"""Values of a run file that point outside it: at spans of time, at the user's code, at programs.

Invariant: a leaf like `types`: rooms import it, it imports no room. Every mistake it finds is a `UserError` before the run starts.
"""
