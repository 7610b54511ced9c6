// SPDX-License-Identifier: GPL-2.0-only
/*
 * Who is told when a file is ready, and how: poll, epoll and signals.
 */
#include <linux/sched/signal.h>

#include "devfile.h"

/* Has the file told when it is ready for one of these events. */
static void arm(struct open_file *file, __poll_t events, u64 space)
{
	struct mirror *mirror = file->mirror;
	unsigned long flags;
	struct slot *slot;
	bool needed;

	spin_lock_irqsave(&mirror->lock, flags);
	needed = events & ~file->awaited;
	file->awaited |= events;
	spin_unlock_irqrestore(&mirror->lock, flags);
	if (!needed)
		return;
	if (wait_event_killable(
		    mirror->free,
		    (slot = take_slot(mirror, false)) ||
			    READ_ONCE(mirror->life) != file->life) ||
	    !slot)
		return;
	kref_get(&file->users);
	slot->file = file;
	reach_nothing(slot);
	slot->request->operation = cpu_to_le32(SLUICE_DEVFILE_AWAIT);
	slot->request->tag = cpu_to_le32(tag_of(mirror, slot));
	slot->request->space = cpu_to_le64(space);
	slot->request->file = cpu_to_le32(file->number);
	slot->request->arguments[0] = cpu_to_le64(mangle_poll(events));
	if (submit(mirror, slot, SLOT_AWAIT, file->life)) {
		free_slot(mirror, slot);
		wake_up_interruptible_all(&file->wait);
		kref_put(&file->users, file_free);
	}
}

/*
 * Who waits by epoll asks once, and then only when woken; if it wants to hear of
 * edges, not even then. It listens on, and so is told of what comes next. So is
 * who is told by signals.
 */
void arm_listeners(struct open_file *file)
{
	__poll_t wanted = READ_ONCE(file->wanted);
	struct space *space;

	if (!wq_has_sleeper(&file->wait))
		wanted = 0;
	if (READ_ONCE(file->signalled))
		wanted |= EPOLLIN | EPOLLRDNORM;
	if (!wanted)
		return;
	space = space_of(file);
	if (space)
		arm(file, wanted, space->number);
}

int devfile_signal(int descriptor, struct file *file, int on)
{
	struct open_file *open = file->private_data;
	int result = fasync_helper(descriptor, file, on, &open->signalled);

	if (on && result >= 0)
		arm_listeners(open);
	return result;
}

__poll_t devfile_poll(struct file *file, poll_table *table)
{
	struct open_file *open = file->private_data;
	__poll_t events = poll_requested_events(table) &
			  (EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDNORM |
			   EPOLLWRNORM | EPOLLRDBAND | EPOLLWRBAND);
	struct slot *slot;
	__poll_t ready;
	s64 result;

	poll_wait(file, &open->wait, table);
	if (wq_has_sleeper(&open->wait))
		WRITE_ONCE(open->wanted, READ_ONCE(open->wanted) | events);
	/* Whoever was woken by an answer need not ask for it again. */
	ready = demangle_poll(xchg(&open->ready, 0)) &
		(events | EPOLLERR | EPOLLHUP);
	if (ready && READ_ONCE(open->mirror->life) == open->life)
		return ready;
	slot = begin(open, SLUICE_DEVFILE_POLL, file->f_flags);
	if (IS_ERR(slot))
		return slot == ERR_PTR(-ERESTARTSYS) ? 0 : EPOLLERR | EPOLLHUP;
	slot->request->arguments[0] = cpu_to_le64(mangle_poll(events));
	result = operate(open->mirror, slot, false, open->life, true);
	if (result == -ERESTARTSYS || result == -EINTR)
		return 0;
	if (plausible(result, U16_MAX) < 0)
		return EPOLLERR | EPOLLHUP;
	if (!result)
		arm_listeners(open);
	return demangle_poll(result);
}
