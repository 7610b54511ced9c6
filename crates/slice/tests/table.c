/* A table as the front end has them, with the fields that are read. table.ll is what clang 14 makes of it:
 * clang-14 -O0 -Xclang -disable-O0-optnone -fno-discard-value-names -w -S -emit-llvm */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef _Bool bool;
#define offsetof __builtin_offsetof
#define NOTHING 0xffff
#define LEAD(ioctl, directions)                                                        \
	.number = ioctl, .ways = directions, .pointer = NOTHING, .follows = NOTHING,   \
	.count = NOTHING, .kind = NOTHING
struct lead {
	u32 number;
	u16 pointer, pointer_bytes, follows, count, count_bytes, sums, size;
	u8 ways;
	bool counted_there;
	u16 takes;
	u16 kind;
	u32 kinds, first_kind;
	const struct lead *elements;
};

static const struct lead words[] = {
	{ LEAD(1, 1), .pointer = 8, .pointer_bytes = 8, .count = 4, .count_bytes = 4, .size = 4 },
	{ LEAD(1, 1), .pointer = 16, .pointer_bytes = 8, .count = 4, .count_bytes = 4,
	  .counted_there = 1, .size = 4 },
	{}
};
static const struct lead table[] = {
	{ LEAD(0xc04064a0, 3), .pointer = 32, .pointer_bytes = 8, .count = 8, .count_bytes = 4, .size = 24,
	  .elements = words },
	{ LEAD(0xc04064a0, 0), .takes = 1 },
	{ LEAD(3, 1), .follows = 8, .count = 4, .count_bytes = 8, .size = 1 },
	{ LEAD(4, 2), .pointer = 0, .pointer_bytes = 4, .size = 0xffff },
	{ LEAD(5, 1), .pointer = 0, .pointer_bytes = 8, .count = 8, .count_bytes = 4, .sums = 17, .size = 4 },
	{ LEAD(6, 1), .pointer = 0, .pointer_bytes = 8, .count = 0xfffe, .size = 4 },
	{ LEAD(7, 1), .pointer = 0, .pointer_bytes = 8, .size = 8, .kind = 12, .kinds = 0x80000001,
	  .first_kind = 32 },
	{},
	{ LEAD(8, 1), .pointer = 0, .pointer_bytes = 8, .size = 8 }
};
const struct lead *const sluice_table = table;
const unsigned int sluice_fields[] = {
	offsetof(struct lead, number),
	offsetof(struct lead, pointer),
	offsetof(struct lead, pointer_bytes),
	offsetof(struct lead, follows),
	offsetof(struct lead, count),
	offsetof(struct lead, count_bytes),
	offsetof(struct lead, sums),
	offsetof(struct lead, size),
	offsetof(struct lead, ways),
	offsetof(struct lead, counted_there),
	offsetof(struct lead, kind),
	offsetof(struct lead, kinds),
	offsetof(struct lead, first_kind),
	offsetof(struct lead, elements)
};

/* What is no table, and tables without an end. */
const unsigned int number = 3;
extern const struct lead elsewhere[];
static const struct lead leads_elsewhere[] = {
	{ LEAD(1, 1), .pointer = 0, .pointer_bytes = 8, .size = 8, .elements = elsewhere },
	{}
};
const struct lead *const sluice_other_table = leads_elsewhere;
static const struct lead itself[] = {
	{ LEAD(1, 1), .pointer = 0, .pointer_bytes = 8, .size = 8, .elements = itself },
	{}
};
const struct lead *const sluice_third_table = itself;
static const struct lead empty[] = { {} };
const struct lead *const sluice_fourth_table = empty;
