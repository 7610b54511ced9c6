// SPDX-License-Identifier: GPL-2.0-only
/*
 * The symbiotic half of virtual passthrough: the stock driver e1000 of a card that the
 * Sluice hypervisor shares (`mode = "vpio"`) goes on as it is, and its busy registers
 * exit no more.
 *
 * A page of the card says how often something happened to the rings (sluice.h,
 * SYMBIOTIC_). This module's handler, on the same interrupt as the driver's, sees that and
 * schedules the driver's poll; the driver's own handler finds no cause and is not
 * concerned. The poll is the driver's, told as if somebody would poll again: so it leaves
 * the interrupt mask alone, and this module says on the page what it waits for. The tail
 * is memory; who transmits rings only where the page asks for it, and once for all that a
 * poll has led to.
 *
 * The driver's poll goes its own way whenever the driver's own handler has masked the
 * interrupt: for changes of the link, and before symbiosis has begun. It ends when the
 * driver resets the card, and the next poll begins it again.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/rculist.h>
#include <linux/slab.h>

#include "sluice.h"

/* Of the 82540EM: the interrupt mask. */
#define CARD_IMS 0xd0
/* Bytes of its registers with those of symbiosis. */
#define CARD_BYTES 0x8000

/* A card. */
struct symbiotic {
	struct list_head link;
	struct net_device *netdev;
	struct napi_struct *napi;
	void __iomem *registers;
	int irq;
	int (*poll)(struct napi_struct *napi, int budget);
	const struct net_device_ops *stock;
	struct net_device_ops ops;
	/* The processor that polls, and one more; 0: none. */
	unsigned int poller;
	/* That one has written the tail, and rings at the end of the poll. */
	bool owes;
};

/* Changed under the lock of the network's configuration. */
static LIST_HEAD(cards);

static u32 look(struct symbiotic *card, u32 offset)
{
	return __raw_readl(card->registers + offset);
}

static void say(struct symbiotic *card, u32 offset, u32 value)
{
	__raw_writel(value, card->registers + offset);
}

static bool is_on(struct symbiotic *card)
{
	return look(card, SLUICE_SYMBIOTIC_DOORBELL) != SLUICE_SYMBIOTIC_DOORBELL_OFF;
}

/* The caller keeps the list from changing, by RCU or by the lock. */
static struct symbiotic *card_of(const struct net_device *netdev)
{
	struct symbiotic *card;

	list_for_each_entry_rcu(card, &cards, link, lockdep_rtnl_is_held())
		if (card->netdev == netdev)
			return card;
	return NULL;
}

/* The hypervisor learns of what was transmitted, if it does not look by itself. */
static void ring(struct symbiotic *card)
{
	/* The tail is written before the wish is read. */
	smp_mb();
	if (look(card, SLUICE_SYMBIOTIC_DOORBELL) == SLUICE_SYMBIOTIC_DOORBELL_WANTED)
		writel(1, card->registers + SLUICE_SYMBIOTIC_RING);
}

static netdev_tx_t transmit(struct sk_buff *skb, struct net_device *netdev)
{
	struct symbiotic *card = card_of(netdev);
	netdev_tx_t done;

	if (!card) /* It goes at this moment. */
		return NETDEV_TX_BUSY;
	done = card->stock->ndo_start_xmit(skb, netdev);
	/* The driver writes the tail with the last of several. */
	if (netdev_xmit_more() && !netif_xmit_stopped(netdev_get_tx_queue(netdev, 0)))
		return done;
	if (READ_ONCE(card->poller) == raw_smp_processor_id() + 1)
		card->owes = true;
	else
		ring(card);
	return done;
}

/*
 * The rings are as they were when so much had been raised: an interrupt is wanted for more,
 * or another poll if there is more already, and nobody is to look for who wants one.
 */
static void await(struct symbiotic *card, u32 seen)
{
	say(card, SLUICE_SYMBIOTIC_EVENT, seen);
	smp_mb();
	if (look(card, SLUICE_SYMBIOTIC_RAISED) != seen && !look(card, SLUICE_SYMBIOTIC_HELD))
		napi_schedule(card->napi);
}

/* The driver's poll, which leaves the interrupt mask alone. */
static int poll_quietly(struct symbiotic *card, int budget, u32 seen)
{
	struct napi_struct *napi = card->napi;
	int work;

	set_bit(NAPI_STATE_IN_BUSY_POLL, &napi->state);
	WRITE_ONCE(card->poller, smp_processor_id() + 1);
	work = card->poll(napi, budget);
	WRITE_ONCE(card->poller, 0);
	clear_bit(NAPI_STATE_IN_BUSY_POLL, &napi->state);
	if (card->owes) {
		card->owes = false;
		ring(card);
	}
	if (work < budget && napi_complete_done(napi, work))
		await(card, seen);
	return work;
}

static int poll(struct napi_struct *napi, int budget)
{
	struct symbiotic *card = card_of(napi->dev);
	u32 seen;
	int work;

	if (!card) /* It goes at this moment. */
		return budget;
	if (!is_on(card))
		writel(SLUICE_SYMBIOTIC_BEGIN, card->registers + SLUICE_SYMBIOTIC_CONTROL);
	/* Who polls without an interrupt comes again. */
	if (!budget || test_bit(NAPI_STATE_IN_BUSY_POLL, &napi->state))
		return card->poll(napi, budget);
	seen = look(card, SLUICE_SYMBIOTIC_RAISED);
	/* What was raised before this is in the rings. */
	smp_mb();
	if (look(card, CARD_IMS))
		return poll_quietly(card, budget, seen);
	/* The driver's own handler has masked the interrupt, which its poll undoes. */
	work = card->poll(napi, budget);
	if (work < budget)
		await(card, seen);
	return work;
}

static irqreturn_t on_interrupt(int irq, void *data)
{
	struct symbiotic *card = data;
	u32 raised;

	if (!is_on(card))
		return IRQ_NONE;
	raised = look(card, SLUICE_SYMBIOTIC_RAISED);
	if (raised == look(card, SLUICE_SYMBIOTIC_TAKEN))
		return IRQ_NONE;
	say(card, SLUICE_SYMBIOTIC_TAKEN, raised);
	napi_schedule(card->napi);
	return IRQ_HANDLED;
}

/* A card of the hypervisor's with its stock driver, and one queue. */
static bool is_known(const struct net_device *netdev)
{
	static const struct pci_device_id ids[] = {
		{ PCI_DEVICE_SUB(PCI_VENDOR_ID_INTEL, 0x100e, PCI_SUBVENDOR_ID_REDHAT_QUMRANET,
				 PCI_SUBDEVICE_ID_QEMU) },
		{}
	};
	struct pci_dev *pdev;

	if (!netdev->dev.parent || !dev_is_pci(netdev->dev.parent))
		return false;
	pdev = to_pci_dev(netdev->dev.parent);
	return pci_match_id(ids, pdev) && pdev->driver && !strcmp(pdev->driver->name, "e1000") &&
	       pci_resource_len(pdev, 0) >= CARD_BYTES && list_is_singular(&netdev->napi_list);
}

static int join(struct net_device *netdev)
{
	struct pci_dev *pdev = to_pci_dev(netdev->dev.parent);
	struct symbiotic *card = kzalloc(sizeof(*card), GFP_KERNEL);
	int error = -ENOMEM;

	if (!card)
		return error;
	card->registers = ioremap(pci_resource_start(pdev, 0), CARD_BYTES);
	if (!card->registers)
		goto no_registers;
	error = -ENODEV;
	if (look(card, SLUICE_SYMBIOTIC_CONTROL) != SLUICE_SYMBIOTIC_MAGIC)
		goto no_symbiosis;
	card->netdev = netdev;
	card->napi = list_first_entry(&netdev->napi_list, struct napi_struct, dev_list);
	card->irq = pdev->irq;
	card->poll = card->napi->poll;
	card->stock = netdev->netdev_ops;
	card->ops = *netdev->netdev_ops;
	card->ops.ndo_start_xmit = transmit;
	error = request_irq(card->irq, on_interrupt, IRQF_SHARED, KBUILD_MODNAME, card);
	if (error)
		goto no_symbiosis;
	list_add_rcu(&card->link, &cards);
	WRITE_ONCE(netdev->netdev_ops, &card->ops);
	/* The first poll begins. */
	WRITE_ONCE(card->napi->poll, poll);
	return 0;

no_symbiosis:
	iounmap(card->registers);
no_registers:
	kfree(card);
	return error;
}

static void leave(struct symbiotic *card)
{
	WRITE_ONCE(card->napi->poll, card->poll);
	WRITE_ONCE(card->netdev->netdev_ops, card->stock);
	/* Nobody polls or transmits by this module any more, nor begins anew. */
	synchronize_net();
	list_del_rcu(&card->link);
	writel(SLUICE_SYMBIOTIC_END, card->registers + SLUICE_SYMBIOTIC_CONTROL);
	free_irq(card->irq, card);
	synchronize_net();
	iounmap(card->registers);
	kfree(card);
}

static int on_change(struct notifier_block *block, unsigned long event, void *data)
{
	struct net_device *netdev = netdev_notifier_info_to_dev(data);
	struct symbiotic *card = card_of(netdev);
	int error;

	if (event == NETDEV_REGISTER && !card && is_known(netdev)) {
		error = join(netdev);
		if (error)
			netdev_info(netdev, "no symbiosis: %d\n", error);
		else
			netdev_info(netdev, "symbiosis with the hypervisor\n");
	}
	if (event == NETDEV_UNREGISTER && card)
		leave(card);
	return NOTIFY_DONE;
}

static struct notifier_block changes = { .notifier_call = on_change };

static int __init symbiotic_init(void)
{
	return register_netdevice_notifier(&changes);
}

/* It is told that all devices go. */
static void __exit symbiotic_exit(void)
{
	unregister_netdevice_notifier(&changes);
}

module_init(symbiotic_init);
module_exit(symbiotic_exit);
MODULE_DESCRIPTION("Symbiosis of the driver e1000 with the Sluice hypervisor");
MODULE_LICENSE("GPL");
