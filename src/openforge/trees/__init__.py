"""Prefix trees of tokens: build, decide, cut, forward, unmerge."""

from openforge.trees.build import build as build
