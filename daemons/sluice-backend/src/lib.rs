//! What the daemon and programs beside it have in common: the device files of the module `sluice-backend`, for the program that attacks by
//! them too, and what reads the words of others (requests of guests and their buffers, answers of vhost-user back ends), for the fuzz targets too.

pub mod command;
pub mod device;
pub mod function;
pub mod packets;
pub mod relay;
pub mod request;
pub mod rng;
pub mod sys;
pub mod table;
pub mod vhost_user;
