"""Published files: read into parameters, and written for other libraries."""
