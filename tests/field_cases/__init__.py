"""What broke for users of other servers of this kind, one named test each: it cannot happen here. See `docs/field-cases.md`."""
