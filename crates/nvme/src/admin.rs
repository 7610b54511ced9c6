//! A guest's commands for its controller: all are answered here.
//!
//! Source: NVMe, 5.

use crate::command::admin;
use crate::prp::scatter;
use crate::queue::{Completions, Doorbells, Submissions, is_page};
use crate::{Command, EVENTS, Front, Memory, Status, VECTORS, identify};

/// The namespace of a log or feature that is of the controller.
const EVERYTHING: u32 = u32::MAX;

/// Features (NVMe, 5.21.1).
mod feature {
    pub const CACHE: u8 = 0x06;
    pub const QUEUES: u8 = 0x07;
    pub const EVENTS: u8 = 0x0b;
}

/// What a command comes to: a status and a result.
type Answer = Result<u32, Status>;

impl Front {
    /// Carries out a command; `page` is for what it answers. `None`: it is answered at some other time.
    pub(crate) fn administer(
        &mut self,
        command: &Command,
        memory: &impl Memory,
        page: &mut [u8],
    ) -> Option<(Status, u32)> {
        let answer =
            if command.is_fused_or_listed() { Err(Status::FIELD) } else { self.act(command, memory, page)? };
        Some(match answer {
            Ok(result) => (Status::SUCCESS, result),
            Err(status) => (status, 0),
        })
    }

    fn act(&mut self, command: &Command, memory: &impl Memory, page: &mut [u8]) -> Option<Answer> {
        Some(match command.opcode() {
            admin::IDENTIFY => self.identify(command, page).and_then(|()| send(command, page, memory)),
            admin::LOG => self.log(command, memory, page),
            admin::CREATE_COMPLETIONS => self.create_completions(command),
            admin::CREATE_SUBMISSIONS => self.create_submissions(command),
            admin::DELETE_SUBMISSIONS => match self.submissions.take_if(|_| command.0[10] & 0xffff == 1) {
                Some(_) => Ok(0),
                None => Err(Status::QUEUE),
            },
            admin::DELETE_COMPLETIONS => self.delete_completions(command),
            admin::SET_FEATURES => self.set_feature(command),
            admin::GET_FEATURES => self.feature(command),
            // It is on its way, or over.
            admin::ABORT => Ok(1),
            admin::EVENT if self.events == EVENTS => Err(Status::EVENTS),
            admin::EVENT => {
                self.events += 1;
                return None;
            }
            admin::DOORBELLS => self.use_doorbells(command),
            _ => Err(Status::OPCODE),
        })
    }

    fn identify(&self, command: &Command, page: &mut [u8]) -> Result<(), Status> {
        let namespace = command.namespace();
        match command.0[10] & 0xff {
            0 if namespace == 1 => self.offer.describe_namespace(page),
            1 => self.offer.controller(page),
            // Namespaces beyond a number.
            2 if namespace < EVERYTHING - 1 => {
                page.fill(0);
                if let Some(byte) = page.first_mut() {
                    *byte = (namespace == 0).into();
                }
            }
            0 | 2 => return Err(Status::NAMESPACE),
            _ => return Err(Status::FIELD),
        }
        Ok(())
    }

    fn log(&self, command: &Command, memory: &impl Memory, page: &mut [u8]) -> Answer {
        let bytes = (u64::from(command.0[10] >> 16) | u64::from(command.0[11] & 0xffff) << 16) * 4 + 4;
        match command.0[10] & 0xff {
            // Nothing has failed in a way that the log tells of.
            1 => page.fill(0),
            2 => self.offer.health(page),
            3 => self.offer.firmware(page),
            _ => return Err(Status::LOG),
        }
        let page = page.get(..bytes as usize).ok_or(Status::FIELD)?;
        send(command, page, memory)
    }

    fn create_completions(&mut self, command: &Command) -> Answer {
        let (at, options) = (command.prp().0, command.0[11]);
        if command.0[10] & 0xffff != 1 || self.completions.is_some() {
            return Err(Status::QUEUE);
        }
        let size = Self::can_hold(at, (command.0[10] >> 16) + 1)?;
        let vector = (options >> 16) as u16;
        if options & 1 == 0 {
            return Err(Status::FIELD);
        }
        if vector >= VECTORS {
            return Err(Status::VECTOR);
        }
        self.completions = Some(Completions::new(at, size, (options & 2 != 0).then_some(vector)));
        Ok(0)
    }

    fn create_submissions(&mut self, command: &Command) -> Answer {
        let (at, options) = (command.prp().0, command.0[11]);
        if command.0[10] & 0xffff != 1 || self.submissions.is_some() {
            return Err(Status::QUEUE);
        }
        let size = Self::can_hold(at, (command.0[10] >> 16) + 1)?;
        if options & 1 == 0 {
            return Err(Status::FIELD);
        }
        if options >> 16 != 1 || self.completions.is_none() {
            return Err(Status::NO_COMPLETIONS);
        }
        self.submissions = Some(Submissions::new(at, size));
        Ok(0)
    }

    fn delete_completions(&mut self, command: &Command) -> Answer {
        if self.submissions.is_some() {
            return Err(Status::DELETION);
        }
        self.completions.take_if(|_| command.0[10] & 0xffff == 1).map(|_| 0).ok_or(Status::QUEUE)
    }

    fn set_feature(&self, command: &Command) -> Answer {
        let wanted = command.0[11];
        match command.0[10] as u8 {
            // One queue of each kind, however many are wanted.
            feature::QUEUES => Ok(0),
            // No event happens.
            feature::EVENTS => Ok(0),
            feature::CACHE if (wanted & 1 != 0) == self.offer.has_cache() => Ok(0),
            0x01 | 0x02 | 0x04..=0x06 | 0x08..=0x0a => Err(Status::NOT_CHANGEABLE),
            _ => Err(Status::FIELD),
        }
    }

    fn feature(&self, command: &Command) -> Answer {
        match command.0[10] as u8 {
            feature::CACHE => Ok(self.offer.has_cache().into()),
            0x01 | 0x02 | 0x04 | 0x05 | 0x07..=0x0b => Ok(0),
            _ => Err(Status::FIELD),
        }
    }

    fn use_doorbells(&mut self, command: &Command) -> Answer {
        let (values, events) = command.prp();
        if !is_page(values) || !is_page(events) {
            return Err(Status::FIELD);
        }
        self.doorbells = Some(Doorbells { values, events });
        Ok(0)
    }
}

/// Sends what was asked for.
fn send(command: &Command, bytes: &[u8], memory: &impl Memory) -> Answer {
    scatter(command.prp(), bytes.get(..identify::BYTES.min(bytes.len())).unwrap_or_default(), memory)
        .map(|()| 0)
}
