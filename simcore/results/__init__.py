"""Results: frozen values that every view reads, from JSON and to JSON; two results side by side."""
