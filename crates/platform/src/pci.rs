//! PCI bus 0.
