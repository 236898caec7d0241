"""One spoken conversation, held, timed and written down: what `nox -s demo` runs."""
