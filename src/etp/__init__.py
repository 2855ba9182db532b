"""One flat, lazy namespace over the packages of etp-suite."""
