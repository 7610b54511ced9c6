// SPDX-License-Identifier: GPL-2.0-only
/*
 * What page tables are allocated and freed, and when: recorded while a buffer is there, until it is full. `cargo sluice threshold` replays it.
 *
 * A byte is a run of equal events: one less than how many in the upper four bits, which events in the lower four. These are twice the level, and one more if a
 * table was freed; or TRACE_SECOND.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mutex.h>
#include <linux/vmalloc.h>

#include "trace.h"

#define TRACE_SECOND (2 * LEVELS)
/* Events of a run. */
#define TRACE_RUN 16

bool tracing;

static DEFINE_MUTEX(trace_mutex); /* of the buffer's coming and going */
static DEFINE_SPINLOCK(trace_lock);
static u8 *buffer;
static size_t size, length;

static void add(u8 event)
{
	spin_lock(&trace_lock);
	if (length && (buffer[length - 1] & 0xf) == event && buffer[length - 1] >> 4 < TRACE_RUN - 1)
		buffer[length - 1] += 0x10;
	else if (length < size)
		buffer[length++] = event;
	else
		WRITE_ONCE(tracing, false);
	spin_unlock(&trace_lock);
}

void trace_table(enum level level, bool freed)
{
	add(2 * level + freed);
}

void trace_second(void)
{
	if (READ_ONCE(tracing))
		add(TRACE_SECOND);
}

unsigned long trace_kib(void)
{
	return READ_ONCE(size) >> 10;
}

int trace_begin(unsigned long kib)
{
	u8 *fresh = NULL, *old;

	if (kib > TRACE_MAX_KIB)
		return -EINVAL;
	if (kib) {
		fresh = vzalloc(kib << 10);
		if (!fresh)
			return -ENOMEM;
	}
	mutex_lock(&trace_mutex);
	spin_lock(&trace_lock);
	old = buffer;
	buffer = fresh;
	length = 0;
	WRITE_ONCE(size, kib << 10);
	WRITE_ONCE(tracing, kib);
	spin_unlock(&trace_lock);
	vfree(old);
	mutex_unlock(&trace_mutex);
	return 0;
}

ssize_t trace_read(char *to, loff_t offset, size_t count)
{
	size_t there;

	mutex_lock(&trace_mutex);
	spin_lock(&trace_lock);
	there = length;
	spin_unlock(&trace_lock);
	if (offset < 0 || offset >= there) {
		count = 0;
	} else {
		count = min_t(size_t, count, there - offset);
		/* Only the last byte changes still, and the buffer stays while the mutex is held. */
		memcpy(to, buffer + offset, count);
	}
	mutex_unlock(&trace_mutex);
	return count;
}
