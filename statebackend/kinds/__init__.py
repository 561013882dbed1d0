"""The kinds of state, apart from where they are stored."""
