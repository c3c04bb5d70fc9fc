//! Servers for tests, tested with the plain client that the stores use.

mod client;
mod faulty_server;
mod proxy;
mod seaweedfs;
