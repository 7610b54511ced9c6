//! The model language.
