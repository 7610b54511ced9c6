/* Ways in which drivers copy what a program's structure leads to. patterns.ll is what clang 14 makes of it:
 * clang-14 -O0 -Xclang -disable-O0-optnone -fno-discard-value-names -S -emit-llvm */
typedef unsigned int u32;
typedef unsigned long u64;
unsigned long sluice_from_user(void *to, const void *from, unsigned long bytes);
unsigned long sluice_to_user(void *to, const void *from, unsigned long bytes);
void *memdup_user(const void *from, unsigned long bytes);
void outside(const void *program);
unsigned long length_of_device(void);
struct array { u64 pointer; u32 count, kind; };
struct item { u32 id, words; u64 data; };

int plain(void *dev, void *data, void *file) { return ((struct array *)data)->count; }

int counted(void *dev, void *data, void *file)
{
	struct array *a = data;
	u64 *copy = memdup_user((void *)a->pointer, a->count * sizeof(u64));
	return copy ? 0 : -12;
}

static int read_item(const struct item *from)
{
	struct item item;
	if (sluice_from_user(&item, from, sizeof(item)))
		return -14;
	memdup_user((void *)item.data, item.words * 4UL);
	return 0;
}

int nested(void *dev, void *data, void *file)
{
	struct array *a = data;
	struct item *items = (void *)a->pointer;
	for (u32 i = 0; i < a->count; i++)
		if (read_item(&items[i]))
			return -14;
	return 0;
}

int put(void *dev, void *data, void *file)
{
	struct array *a = data;
	u32 count = 0, value = 7;
	for (u32 i = 0; i < 100; i++)
		if (i & 3) {
			if (count < a->count && sluice_to_user((u32 *)a->pointer + count, &value, 4))
				return -14;
			count++;
		}
	return 0;
}

int by_kind(void *dev, void *data, void *file)
{
	struct array *a = data;
	if ((a->kind == 9 || a->kind == 10) && a->count)
		memdup_user((void *)a->pointer, a->count * 64UL);
	return 0;
}

int chain(void *dev, void *data, void *file)
{
	u64 next = ((struct array *)data)->pointer;
	while (next) {
		u64 link[2];
		if (sluice_from_user(link, (void *)next, sizeof(link)))
			return -14;
		next = link[0];
	}
	return 0;
}

int unknown_length(void *dev, void *data, void *file)
{
	memdup_user((void *)((struct array *)data)->pointer, length_of_device());
	return 0;
}

int escapes(void *dev, void *data, void *file)
{
	outside((void *)((struct array *)data)->pointer);
	return 0;
}

long switched(void *file, u32 cmd, u64 arg)
{
	u32 value = 0;
	switch (cmd) {
	case 0x80044501: return sluice_to_user((void *)arg, &value, 4);
	case 0x40084502: { struct array a; return sluice_from_user(&a, (void *)arg, 8); }
	}
	return -25;
}

/* No round of the loop, so that nothing is copied. A walk that takes for known what is not sees the same. */
int unreached(void *dev, void *data, void *file)
{
	struct list { struct list *next; } head = { &head }, *each, *last = 0;
	for (each = head.next; each != &head; each = each->next)
		last = each;
	if (!last)
		return -2;
	memdup_user((void *)((struct array *)data)->pointer, 16);
	return 0;
}

int by_kind_of_element(void *dev, void *data, void *file)
{
	struct array *a = data;
	struct parameter { u64 kind, value; } *copy = memdup_user((void *)a->pointer, a->count * sizeof(*copy));
	for (u32 i = 0; i < a->count; i++)
		switch (copy[i].kind) {
		case 1: a->kind = copy[i].value; break;
		case 4: memdup_user((void *)copy[i].value, 64); break;
		default: return -22;
		}
	return 0;
}
