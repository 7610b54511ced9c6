// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tells a debugger which memory of a program the kernel reaches in ioctls.
 *
 * Who opens /dev/sluice-learn reads from it what was reached of processes that it
 * traces (ptrace), a record for each piece. Probes are at the functions by which
 * drivers reach a program's memory, for as long as the file is open. What the
 * compiler put into a driver is not seen: moves between user_access_begin and
 * user_access_end. Nor is memory that is cleared: probed, clear_user() of Linux 6.1
 * does not come back. Events of tracefs cannot be at these functions, which are
 * compiled without what it needs.
 *
 * It is for who makes tables of ioctls, beside the drivers that they are of
 * (docs/analyzer.md), and not for a machine in use.
 */
#include <linux/kfifo.h>
#include <linux/kprobes.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/ptrace.h>
#include <linux/rcupdate.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <asm/syscall.h>

/* daemons/sluice-learn/src/reach.rs has it, too. */
enum way { READS, WRITES, READS_TEXT, HOLDS, LOST };
struct record {
	u32 thread;
	u32 way;
	u64 address;
	u64 bytes;
	char by[24]; /* the function; the last byte is 0 */
};

/* Records that wait to be read: what one ioctl may cause. */
#define RECORDS 16384

/* Where a function has its addresses and lengths. */
enum kind {
	COPIES, /* to RDI from RSI, RDX bytes */
	COPIES_RCX, /* RCX bytes */
	GETS, /* from RAX */
	PUTS, /* to RCX */
	GETS_TEXT, /* from RSI, at most RDX bytes */
	TAKES_HOLD, /* from RDI on */
};

struct place {
	const char *name;
	enum kind kind;
	u8 bytes; /* of GETS and PUTS */
	bool is_needed; /* else some kernels do not have it */
	bool is_set;
	struct kprobe probe;
};

#define PLACE(function, does, ...) { .name = #function, .kind = does, ##__VA_ARGS__ }
#define NUMBERS(function, does)                                              \
	PLACE(function##_1, does, .bytes = 1),                               \
	PLACE(function##_2, does, .bytes = 2),                               \
	PLACE(function##_4, does, .bytes = 4),                               \
	PLACE(function##_8, does, .bytes = 8)

static struct place places[] = {
	PLACE(_copy_from_user, COPIES, .is_needed = true),
	PLACE(_copy_to_user, COPIES, .is_needed = true),
	PLACE(copy_user_enhanced_fast_string, COPIES),
	PLACE(copy_user_generic_string, COPIES),
	PLACE(copy_user_generic_unrolled, COPIES),
	PLACE(rep_movs_alternative, COPIES_RCX),
	PLACE(__copy_user_nocache, COPIES),
	NUMBERS(__get_user, GETS),
	NUMBERS(__get_user_nocheck, GETS),
	NUMBERS(__put_user, PUTS),
	NUMBERS(__put_user_nocheck, PUTS),
	PLACE(strncpy_from_user, GETS_TEXT, .is_needed = true),
	PLACE(pin_user_pages, TAKES_HOLD),
	PLACE(pin_user_pages_fast, TAKES_HOLD),
	PLACE(get_user_pages, TAKES_HOLD),
	PLACE(get_user_pages_fast, TAKES_HOLD),
};

static DEFINE_MUTEX(user); /* who has the file open */
static pid_t debugger; /* its process */
static DEFINE_RAW_SPINLOCK(lock);
static DEFINE_KFIFO(records, struct record, RECORDS); /* lock */
static bool is_full; /* lock: something was not noted */

static bool is_watched(void)
{
	struct task_struct *tracer;
	bool is;

	rcu_read_lock();
	tracer = ptrace_parent(current);
	is = tracer && task_tgid_nr(tracer) == READ_ONCE(debugger);
	rcu_read_unlock();
	return is && syscall_get_nr(current, task_pt_regs(current)) == __NR_ioctl;
}

static bool is_programs(unsigned long address)
{
	return address < TASK_SIZE_MAX;
}

/* Where it is in the program's memory that a function is about to reach; false: nowhere. */
static bool is_reached(const struct place *place, const struct pt_regs *regs, struct record *record)
{
	switch (place->kind) {
	case COPIES:
	case COPIES_RCX:
		record->way = is_programs(regs->di) ? WRITES : READS;
		record->address = is_programs(regs->di) ? regs->di : regs->si;
		record->bytes = place->kind == COPIES ? regs->dx : regs->cx;
		break;
	case GETS:
		record->way = READS;
		record->address = regs->ax;
		record->bytes = place->bytes;
		break;
	case PUTS:
		record->way = WRITES;
		record->address = regs->cx;
		record->bytes = place->bytes;
		break;
	case GETS_TEXT:
		record->way = READS_TEXT;
		record->address = regs->si;
		record->bytes = regs->dx;
		break;
	case TAKES_HOLD:
		record->way = HOLDS;
		record->address = regs->di;
		break;
	}
	return is_programs(record->address);
}

static int on_place(struct kprobe *probe, struct pt_regs *regs)
{
	struct place *place = container_of(probe, struct place, probe);
	struct record record = { .thread = task_pid_nr(current) };
	unsigned long flags;

	if (!is_watched() || !is_reached(place, regs, &record))
		return 0;
	strscpy(record.by, place->name, sizeof(record.by));
	raw_spin_lock_irqsave(&lock, flags);
	if (!kfifo_put(&records, record))
		is_full = true;
	raw_spin_unlock_irqrestore(&lock, flags);
	return 0;
}
NOKPROBE_SYMBOL(on_place);

static void clear_places(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(places); i++) {
		if (places[i].is_set)
			unregister_kprobe(&places[i].probe);
		places[i].is_set = false;
	}
}

static int set_places(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(places); i++) {
		struct place *place = &places[i];
		int error;

		/* What it was when it was set before is of no use. */
		memset(&place->probe, 0, sizeof(place->probe));
		place->probe.symbol_name = place->name;
		place->probe.pre_handler = on_place;
		error = register_kprobe(&place->probe);
		place->is_set = !error;
		if (error && place->is_needed) {
			pr_err("%s cannot be probed: %d\n", place->name, error);
			clear_places();
			return error;
		}
	}
	return 0;
}

static int learn_open(struct inode *inode, struct file *file)
{
	int error;

	/* It tells of memory by address, as a debugger may see it that may see all. */
	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (!mutex_trylock(&user))
		return -EBUSY;
	kfifo_reset(&records);
	is_full = false;
	WRITE_ONCE(debugger, task_tgid_nr(current));
	error = set_places();
	if (error)
		mutex_unlock(&user);
	return error;
}

static int learn_release(struct inode *inode, struct file *file)
{
	clear_places();
	mutex_unlock(&user);
	return 0;
}

/* As many records as there are, and as there is room for. */
static ssize_t learn_read(struct file *file, char __user *to, size_t room, loff_t *at)
{
	struct record record;
	size_t done = 0;

	while (room - done >= sizeof(record)) {
		bool is_there;

		memset(&record, 0, sizeof(record));
		raw_spin_lock_irq(&lock);
		is_there = kfifo_get(&records, &record);
		if (!is_there && is_full) {
			record.way = LOST;
			is_full = false;
			is_there = true;
		}
		raw_spin_unlock_irq(&lock);
		if (!is_there)
			break;
		if (copy_to_user(to + done, &record, sizeof(record)))
			return -EFAULT;
		done += sizeof(record);
	}
	return done;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = learn_open,
	.release = learn_release,
	.read = learn_read,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "sluice-learn",
	.fops = &operations,
	.mode = 0600,
};

module_misc_device(device);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Tells a debugger which memory of a program the kernel reaches in ioctls");
