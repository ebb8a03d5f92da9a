"""JSON schemas, GBNF, Lark and regular expressions become masks over the vocabulary."""
