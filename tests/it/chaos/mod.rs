//! Servers and processes are killed.

mod servers;
