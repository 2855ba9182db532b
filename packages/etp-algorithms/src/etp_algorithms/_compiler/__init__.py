"""The trace compiler, one pass a file: capture, positions, groups, relations, transitions, trust."""
