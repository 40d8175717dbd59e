"""Where agents' and rewards' commands run."""

from openforge.sandbox.process import ProcessSandbox as ProcessSandbox
