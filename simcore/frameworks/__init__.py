"""One file per framework: a table in the words of `simcore.framework`, and what no table can say as a function."""
