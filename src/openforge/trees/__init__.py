"""Prefix trees of tokens: build, pack, forward, unmerge."""

from openforge.trees.build import build as build
