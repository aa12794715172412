"""Public corpora: the catalogue of their files and checksums, and the download."""
