// SPDX-License-Identifier: GPL-2.0-only
/*
 * A request that its caller waits for: declared to the hypervisor, posted in the
 * lane of the address space or handed over by the queue, and withdrawn.
 */
#include <linux/kvm_para.h>
#include <linux/module.h>
#include <linux/sched/signal.h>

#include "devfile.h"

/*
 * Who waits longer than a fresh answer takes is put to sleep. The other side
 * looks for requests as long as it was told to.
 */
static unsigned int poll_us = 200;
module_param(poll_us, uint, 0644);
MODULE_PARM_DESC(poll_us,
		 "time for which an operation looks for its answer; 0: it sleeps at once, and has the other domain woken");

/*
 * Sleeps until a request is answered: as long as that takes, or as is said. It
 * may not have been when this returns.
 */
static s64 await(struct mirror *mirror, struct slot *slot, bool blocks,
		 u64 life)
{
	unsigned long patience = msecs_to_jiffies(patience_ms);
	unsigned long flags;
	bool interrupted = false, answered;
	long left;

	if (blocks)
		left = wait_for_completion_interruptible(&slot->done) ? -1 : 1;
	else
		left = wait_for_completion_killable_timeout(&slot->done,
							    patience);
	if (left <= 0) {
		interrupted = left < 0;
		notice(mirror, SLUICE_DEVFILE_CANCEL, tag_of(mirror, slot), 0,
		       0, life);
		wait_for_completion_timeout(&slot->done, patience);
	}
	spin_lock_irqsave(&mirror->lock, flags);
	answered = slot->state == SLOT_ANSWERED;
	spin_unlock_irqrestore(&mirror->lock, flags);
	if (!answered)
		return interrupted ? -EINTR : -EIO;
	if (slot->result == -EINTR && interrupted)
		return -ERESTARTSYS;
	return slot->result;
}

/* Lanes. */

/* Where the lane of the caller's address space is, for who looks there; 0: it is not to. */
static u32 lane_page(struct mirror *mirror, struct slot *slot)
{
	struct devfile_lane *lane = slot->space->lane;
	u64 page;

	if (!lane || !READ_ONCE(poll_us))
		return 0;
	page = mirror->lane_addresses[lane_number(mirror, lane)] >> PAGE_SHIFT;
	/* Beyond 16 TiB it has no number. */
	return page <= U32_MAX ? page : 0;
}

/* Leaves a request in the lane of the caller's address space, if the other side looks for one there. */
static bool post(struct slot *slot)
{
	struct space *space = slot->space;
	struct devfile_lane *lane = space->lane;
	unsigned int i;

	if (!lane || !READ_ONCE(poll_us) ||
	    READ_ONCE(lane->state) != SLUICE_DEVFILE_LANE_OPEN)
		return false;
	if (READ_ONCE(space->rest)) {
		WRITE_ONCE(space->rest, space->rest - 1);
		return false;
	}
	if (test_and_set_bit_lock(0, &space->posting))
		return false;
	memcpy(&lane->request.header, &slot->request->header,
	       sizeof(lane->request.header));
	for (i = 0; i < slot->count; i++)
		lane->request.ranges[i] = slot->request->ranges[i];
	WRITE_ONCE(lane->posted, cpu_to_le32(++space->posted));
	if (cmpxchg(&lane->state, SLUICE_DEVFILE_LANE_OPEN,
		    SLUICE_DEVFILE_LANE_POSTED) == SLUICE_DEVFILE_LANE_OPEN)
		return true;
	clear_bit_unlock(0, &space->posting);
	return false;
}

/* Looks for the answer to what was posted. It may not be there when this returns. */
static bool look(struct space *space, s64 *result)
{
	struct devfile_lane *lane = space->lane;
	u64 end = 0;
	u32 i;

	for (i = 1; smp_load_acquire(&lane->state) ==
		    SLUICE_DEVFILE_LANE_POSTED;
	     i++) {
		u64 now;

		cpu_relax();
		if (i % 64)
			continue;
		if (signal_pending(current))
			return false;
		cond_resched();
		now = ktime_get_ns();
		if (end && now >= end) {
			space->rested = min(2 * space->rested + 1, 63U);
			WRITE_ONCE(space->rest, space->rested);
			return false;
		}
		if (!end)
			end = now + NSEC_PER_USEC * READ_ONCE(poll_us);
	}
	space->rested = 0;
	*result = le64_to_cpu(READ_ONCE(lane->result));
	/* Somebody else may look there by now, and have been asked nothing. */
	if (le32_to_cpu(READ_ONCE(lane->answered)) != space->posted)
		*result = -EIO;
	return true;
}

/* Makes a request by the lane. Otherwise it is to be made by the queue. */
static bool operate_at_once(struct mirror *mirror, struct slot *slot,
			    s64 *result)
{
	struct devfile_request *request = slot->request;
	struct space *space = slot->space;
	bool done;

	if (!post(slot))
		return false;
	atomic_long_inc(&mirror->posted);
	done = look(space, result);
	if (!done) {
		atomic_long_inc(&mirror->adopted);
		request->operation = cpu_to_le32(SLUICE_DEVFILE_ADOPT);
		request->arguments[0] = cpu_to_le64(space->posted);
	} else if (*result == -(s64)SLUICE_DEVFILE_UNKNOWN_FILE) {
		done = false;
	}
	clear_bit_unlock(0, &space->posting);
	return done;
}

/* Makes a request by the queue, and waits. Returns whether the slot is with the other side, perhaps yet. */
static bool operate_by_queue(struct mirror *mirror, struct slot *slot,
			     bool blocks, u64 life, s64 *result)
{
	slot->request->lane = cpu_to_le32(lane_page(mirror, slot));
	*result = submit(mirror, slot, SLOT_WAITED, life);
	if (*result)
		return false;
	*result = await(mirror, slot, blocks, life);
	return true;
}

/* Makes a request for the caller, and waits. The slot is not the caller's any more. */
s64 operate(struct mirror *mirror, struct slot *slot, bool blocks, u64 life,
	    bool at_once)
{
	u32 tag = tag_of(mirror, slot), count = slot->count;
	struct devfile_request *request = slot->request;
	__le32 operation = request->operation;
	__le64 argument = request->arguments[0];
	unsigned long flags;
	bool submitted = false;
	s64 result;

	request->tag = cpu_to_le32(tag);
	request->counts = cpu_to_le32(count | slot->taken_count << 16);
	if (count) {
		memcpy(request->ranges, slot->ranges,
		       count * sizeof(*slot->ranges));
		result = kvm_hypercall4(SLUICE_DEVFILE_DECLARE, mirror->slot,
					tag, virt_to_phys(slot->ranges),
					count);
		if (result) {
			result = -EIO;
			goto unpin;
		}
	}
	if (!at_once || !operate_at_once(mirror, slot, &result)) {
		submitted = operate_by_queue(mirror, slot, blocks, life,
					     &result);
		/* What was posted and then adopted may be the daemon's, too: it is asked now. */
		if (request->operation != operation &&
		    result == -(s64)SLUICE_DEVFILE_UNKNOWN_FILE) {
			request->operation = operation;
			request->arguments[0] = argument;
			submitted = operate_by_queue(mirror, slot, blocks, life,
						     &result);
		}
	}
	if (count)
		kvm_hypercall2(SLUICE_DEVFILE_WITHDRAW, mirror->slot, tag);
unpin:
	if (count)
		unpin(slot);
	if (slot->taken_count)
		let_go(slot);
	if (submitted) {
		/* What is not answered keeps its tag until it is, or the device is reset. */
		spin_lock_irqsave(&mirror->lock, flags);
		submitted = slot->state == SLOT_WAITED;
		if (submitted)
			slot->state = SLOT_ALONE;
		spin_unlock_irqrestore(&mirror->lock, flags);
	}
	if (!submitted)
		free_slot(mirror, slot);
	return result;
}
