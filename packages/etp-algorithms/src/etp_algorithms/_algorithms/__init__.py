"""The learning algorithms, one file each."""
