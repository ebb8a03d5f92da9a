"""`edgespec list`, `show`, `rm` and `import`: the pairs on this machine."""
