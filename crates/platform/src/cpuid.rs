//! CPUID.
