//! MSI-X tables.
