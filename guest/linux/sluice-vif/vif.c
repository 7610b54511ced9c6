// SPDX-License-Identifier: GPL-2.0-only
/*
 * Network interfaces of the Sluice hypervisor that show themselves as they are
 * (`face = "native"`).
 *
 * The engine and this driver have rings in common (sluice.h, VIF_), and a pool of
 * pages of the guest's, which is handed over when the driver is bound: no address is
 * ever told after that, and the engine reads and writes nothing else. The first pages
 * of the pool are for sending, one for each entry of the ring: frames are copied
 * there, and let go of at once. The others are for receiving. What was received goes
 * to the stack where it is: a page is offered again when nobody else has a reference to it.
 * If few are left, frames are copied into new pages.
 *
 * Source: Raj and Schwan, "High Performance and Scalable I/O Virtualization via
 * Self-Virtualized Devices", 2.2.
 */
#include <linux/ethtool.h>
#include <linux/etherdevice.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>
#include <linux/virtio_net.h>

#include "sluice.h"

/* Pages for sending come first in the pool; the rest is for receiving. */
#define ENTRIES SLUICE_VIF_ENTRIES
#define POOL SLUICE_VIF_POOL
#define RECEIVE_PAGES (POOL - ENTRIES)
/* Entries that the longest frame takes. */
#define LONGEST DIV_ROUND_UP(GSO_LEGACY_MAX_SIZE + ETH_HLEN + VLAN_HLEN, PAGE_SIZE)
/* Bytes of a frame that are copied in front of the page in which the rest is. */
#define HEAD 128
/* Frames up to so many bytes are copied. */
#define SHORT 256
/* With fewer pages on offer the stack gets copies. */
#define FEW (ENTRIES / 4)
/* Pages that are looked at for one that is free. */
#define LOOKS 8

static_assert(PAGE_SIZE == 4096);
static_assert(LONGEST <= SLUICE_VIF_MAX_DESCRIPTORS);

struct descriptor {
	__le16 page;
	__le16 len;
	__le16 flags;
	struct virtio_net_hdr header;
} __packed;

static_assert(sizeof(struct descriptor) == SLUICE_VIF_DESCRIPTOR);

struct vif {
	struct net_device *netdev;
	struct pci_dev *pdev;
	void *structure;
	void __iomem *registers;
	unsigned long doorbell;
	struct napi_struct napi;
	u16 to_send; /* descriptors handed over */
	u16 offered; /* pages */
	u16 received; /* pages taken */
	u16 spare_first; /* in spare, modulo RECEIVE_PAGES */
	u16 spares;
	u16 spare[RECEIVE_PAGES]; /* pages that are not on offer, the oldest first */
	struct page *pages[POOL];
	bool broken;
};

static __le16 *word(struct vif *vif, u32 offset)
{
	return vif->structure + offset;
}

static u16 look(struct vif *vif, u32 offset)
{
	return le16_to_cpu(READ_ONCE(*word(vif, offset)));
}

static void show(struct vif *vif, u32 offset, u16 value)
{
	WRITE_ONCE(*word(vif, offset), cpu_to_le16(value));
}

/* A signal is wanted. What came before that is seen by who looks after this. */
static void want(struct vif *vif, u32 offset)
{
	show(vif, offset, 1);
	virt_mb();
}

static struct descriptor *entry(struct vif *vif, u32 ring, u16 index)
{
	return (struct descriptor *)(vif->structure + ring) + index % ENTRIES;
}

static int command(struct vif *vif, u32 command)
{
	iowrite32(command, vif->registers + (SLUICE_VIF_COMMAND - SLUICE_VIF_STRUCTURE));
	return ioread32(vif->registers + (SLUICE_VIF_COMMAND - SLUICE_VIF_STRUCTURE)) ? -EIO : 0;
}

static u16 room(struct vif *vif)
{
	u16 busy = vif->to_send - look(vif, SLUICE_VIF_SENT);

	/* What the engine has read of pages comes before they are written again. */
	virt_rmb();
	return busy < ENTRIES ? ENTRIES - busy : 0;
}

static netdev_tx_t vif_start_xmit(struct sk_buff *skb, struct net_device *netdev)
{
	struct vif *vif = netdev_priv(netdev);
	u16 count = DIV_ROUND_UP(skb->len, PAGE_SIZE), nth;
	struct virtio_net_hdr header;

	if (unlikely(count > room(vif))) {
		netif_stop_queue(netdev);
		return NETDEV_TX_BUSY;
	}
	if (count > LONGEST || virtio_net_hdr_from_skb(skb, &header, true, false, 0)) {
		netdev->stats.tx_dropped++;
		dev_kfree_skb_any(skb);
		goto tell;
	}
	for (nth = 0; nth < count; nth++) {
		u16 slot = (u16)(vif->to_send + nth) % ENTRIES;
		u32 from = nth * PAGE_SIZE, len = min_t(u32, skb->len - from, PAGE_SIZE);

		skb_copy_bits(skb, from, page_address(vif->pages[slot]), len);
		*entry(vif, SLUICE_VIF_SEND_RING, slot) = (struct descriptor){
			.page = cpu_to_le16(slot),
			.len = cpu_to_le16(len),
			.flags = cpu_to_le16(nth + 1 < count ? SLUICE_VIF_DESCRIPTOR_MORE : 0),
			.header = header,
		};
	}
	vif->to_send += count;
	netdev->stats.tx_packets++;
	netdev->stats.tx_bytes += skb->len;
	skb_tx_timestamp(skb);
	dev_consume_skb_any(skb);
	if (room(vif) < LONGEST) {
		netif_stop_queue(netdev);
		want(vif, SLUICE_VIF_WANTS_SENT);
		if (room(vif) >= LONGEST) {
			show(vif, SLUICE_VIF_WANTS_SENT, 0);
			netif_start_queue(netdev);
		}
	}
tell:
	if (netdev_xmit_more() && !netif_queue_stopped(netdev))
		return NETDEV_TX_OK;
	virt_wmb();
	show(vif, SLUICE_VIF_TO_SEND, vif->to_send);
	virt_mb();
	if (look(vif, SLUICE_VIF_DOORBELL_WANTED))
		outw(0, vif->doorbell);
	return NETDEV_TX_OK;
}

static void add_spare(struct vif *vif, u16 number)
{
	vif->spare[(vif->spare_first + vif->spares++) % RECEIVE_PAGES] = number;
}

static u16 take_spare(struct vif *vif)
{
	u16 number = vif->spare[vif->spare_first];

	vif->spare_first = (vif->spare_first + 1) % RECEIVE_PAGES;
	vif->spares--;
	return number;
}

/* Offers pages that nobody else has, as many as there is room for. */
static void offer(struct vif *vif)
{
	u16 busy = 0, before = vif->offered;

	while ((u16)(vif->offered - vif->received) < ENTRIES && vif->spares && busy < LOOKS) {
		u16 number = take_spare(vif);

		if (page_ref_count(vif->pages[number]) != 1) {
			add_spare(vif, number);
			busy++;
			continue;
		}
		word(vif, SLUICE_VIF_OFFERED_RING)[vif->offered++ % ENTRIES] = cpu_to_le16(number);
	}
	if (vif->offered == before)
		return;
	virt_wmb();
	show(vif, SLUICE_VIF_OFFERED, vif->offered);
}

/* The other side makes no sense any more: it is gone, or we are the ones who broke the rules. */
static void give_up(struct vif *vif, const char *why)
{
	if (vif->broken)
		return;
	vif->broken = true;
	netdev_err(vif->netdev, "%s; set the link down and up again\n", why);
	netif_carrier_off(vif->netdev);
}

/* Adds what is in a page from `from` on to a frame; a copy, if few pages are left. False: there is no memory for that, or it is too long. */
static bool add(struct sk_buff *skb, struct page *page, u32 from, u32 len, bool copies)
{
	if (skb_shinfo(skb)->nr_frags == MAX_SKB_FRAGS)
		return false;
	if (copies) {
		struct page *copy = dev_alloc_page();

		if (!copy)
			return false;
		memcpy(page_address(copy) + from, page_address(page) + from, len);
		page = copy;
	} else {
		get_page(page);
	}
	skb_add_rx_frag(skb, skb_shinfo(skb)->nr_frags, page, from, len, PAGE_SIZE);
	return true;
}

/* The next frame that was received; NULL: there is none. One that finds no memory is lost. */
static struct sk_buff *receive(struct vif *vif)
{
	struct virtio_net_hdr header;
	struct sk_buff *skb = NULL;
	bool first = true, more;

	if (vif->broken || vif->received == look(vif, SLUICE_VIF_RECEIVED))
		return NULL;
	virt_rmb();
	do {
		struct descriptor *filled = entry(vif, SLUICE_VIF_RECEIVED_RING, vif->received);
		bool copies = (u16)(vif->offered - vif->received) < FEW;
		u16 number = le16_to_cpu(filled->page), len = le16_to_cpu(filled->len), head = 0;
		struct page *page = vif->pages[number % POOL];

		more = le16_to_cpu(filled->flags) & SLUICE_VIF_DESCRIPTOR_MORE;
		if (number < ENTRIES || number >= POOL || !len || len > PAGE_SIZE ||
		    vif->received == vif->offered) {
			give_up(vif, "received what cannot be");
			kfree_skb(skb);
			return NULL;
		}
		if (first) {
			header = filled->header;
			head = len <= SHORT ? len : HEAD;
			skb = napi_alloc_skb(&vif->napi, head);
			if (skb)
				skb_put_data(skb, page_address(page), head);
		}
		first = false;
		if (skb && len > head && !add(skb, page, head, len - head, copies)) {
			dev_kfree_skb_any(skb);
			skb = NULL;
		}
		vif->received++;
		add_spare(vif, number);
	} while (more);

	if (!skb || virtio_net_hdr_to_skb(skb, &header, true)) {
		vif->netdev->stats.rx_dropped++;
		kfree_skb(skb);
		return ERR_PTR(-ENOMEM);
	}
	if (header.flags & VIRTIO_NET_HDR_F_DATA_VALID)
		skb->ip_summed = CHECKSUM_UNNECESSARY;
	vif->netdev->stats.rx_packets++;
	vif->netdev->stats.rx_bytes += skb->len;
	skb->protocol = eth_type_trans(skb, vif->netdev);
	return skb;
}

/* The sending side goes on if there is room, or has broken. */
static void look_at_sent(struct vif *vif)
{
	if (look(vif, SLUICE_VIF_BROKEN))
		give_up(vif, "the hypervisor says that this driver broke the rules");
	if (netif_queue_stopped(vif->netdev) && room(vif) >= LONGEST)
		netif_wake_queue(vif->netdev);
}

static int vif_poll(struct napi_struct *napi, int budget)
{
	struct vif *vif = container_of(napi, struct vif, napi);
	int done = 0;

	while (done < budget) {
		struct sk_buff *skb = receive(vif);

		if (!skb)
			break;
		if (!IS_ERR(skb))
			napi_gro_receive(napi, skb);
		done++;
	}
	offer(vif);
	if (done < budget && napi_complete_done(napi, done)) {
		want(vif, SLUICE_VIF_WANTS_RECEIVED);
		if (!vif->broken && look(vif, SLUICE_VIF_RECEIVED) != vif->received &&
		    napi_schedule_prep(napi)) {
			show(vif, SLUICE_VIF_WANTS_RECEIVED, 0);
			__napi_schedule(napi);
		}
	}
	return done;
}

static irqreturn_t on_received(int irq, void *data)
{
	struct vif *vif = data;

	if (napi_schedule_prep(&vif->napi)) {
		show(vif, SLUICE_VIF_WANTS_RECEIVED, 0);
		__napi_schedule_irqoff(&vif->napi);
	}
	return IRQ_HANDLED;
}

static irqreturn_t on_sent(int irq, void *data)
{
	struct vif *vif = data;

	show(vif, SLUICE_VIF_WANTS_SENT, 0);
	look_at_sent(vif);
	return IRQ_HANDLED;
}

static int vif_open(struct net_device *netdev)
{
	struct vif *vif = netdev_priv(netdev);
	u16 nth;

	vif->to_send = vif->offered = vif->received = 0;
	vif->spare_first = vif->spares = 0;
	vif->broken = false;
	for (nth = ENTRIES; nth < POOL; nth++)
		add_spare(vif, nth);
	if (command(vif, SLUICE_VIF_COMMAND_START))
		return -EIO;
	napi_enable(&vif->napi);
	netif_carrier_on(netdev);
	netif_start_queue(netdev);
	/* The first poll offers pages, and asks for signals. */
	local_bh_disable();
	napi_schedule(&vif->napi);
	local_bh_enable();
	return 0;
}

static int vif_stop(struct net_device *netdev)
{
	struct vif *vif = netdev_priv(netdev);

	netif_tx_disable(netdev);
	netif_carrier_off(netdev);
	command(vif, SLUICE_VIF_COMMAND_STOP);
	napi_disable(&vif->napi);
	return 0;
}

static const struct net_device_ops operations = {
	.ndo_open = vif_open,
	.ndo_stop = vif_stop,
	.ndo_start_xmit = vif_start_xmit,
	.ndo_validate_addr = eth_validate_addr,
	.ndo_set_mac_address = eth_mac_addr,
};

static const struct ethtool_ops tools = {
	.get_link = ethtool_op_get_link,
};

static void free_pages_of(void *data)
{
	struct vif *vif = data;
	u32 nth;

	for (nth = 0; nth < POOL && vif->pages[nth]; nth++)
		put_page(vif->pages[nth]);
}

static void set_register(struct vif *vif, u32 offset, u32 value)
{
	iowrite32(value, vif->registers + (offset - SLUICE_VIF_STRUCTURE));
}

/* Hands over so many pages of a list; none: they are ours alone again. */
static int hand_over(struct vif *vif, u64 *list, u32 count)
{
	u64 at = list ? virt_to_phys(list) : 0;

	set_register(vif, SLUICE_VIF_POOL_LIST, lower_32_bits(at));
	set_register(vif, SLUICE_VIF_POOL_LIST_HIGH, upper_32_bits(at));
	set_register(vif, SLUICE_VIF_POOL_COUNT, count);
	return command(vif, SLUICE_VIF_COMMAND_POOL);
}

static int make_pool(struct vif *vif)
{
	u64 *list = kmalloc_array(POOL, sizeof(*list), GFP_KERNEL);
	int error = list ? 0 : -ENOMEM;
	u32 nth;

	for (nth = 0; nth < POOL && !error; nth++) {
		vif->pages[nth] = alloc_page(GFP_KERNEL);
		if (vif->pages[nth])
			list[nth] = cpu_to_le64(page_to_phys(vif->pages[nth]));
		else
			error = -ENOMEM;
	}
	if (!error)
		error = hand_over(vif, list, POOL);
	kfree(list);
	return error;
}

static void unmap(void *data)
{
	memunmap(data);
}

/* The parts of the function that are reached. They go when the driver is unbound. */
static int reach(struct vif *vif)
{
	struct device *dev = &vif->pdev->dev;
	resource_size_t at = pci_resource_start(vif->pdev, SLUICE_VIF_BAR);
	int error;

	if (pci_resource_len(vif->pdev, SLUICE_VIF_BAR) < SLUICE_VIF_BAR_SIZE)
		return -ENODEV;
	vif->structure = memremap(at, SLUICE_VIF_STRUCTURE, MEMREMAP_WB);
	if (!vif->structure)
		return -ENOMEM;
	error = devm_add_action_or_reset(dev, unmap, vif->structure);
	if (error)
		return error;
	vif->registers = devm_ioremap(dev, at + SLUICE_VIF_STRUCTURE, PAGE_SIZE);
	if (!vif->registers)
		return -ENOMEM;
	vif->doorbell = pci_resource_start(vif->pdev, SLUICE_VIF_DOORBELL_BAR);
	if (le32_to_cpu(*(__le32 *)(vif->structure + SLUICE_VIF_MAGIC)) != SLUICE_VIF_MAGIC_VALUE ||
	    le32_to_cpu(*(__le32 *)(vif->structure + SLUICE_VIF_VERSION)) != SLUICE_VIF_VERSION_VALUE) {
		dev_err(dev, "this module is for another version of the hypervisor\n");
		return -ENODEV;
	}
	return 0;
}

static int listen(struct vif *vif)
{
	static const irq_handler_t handlers[] = {
		[SLUICE_VIF_RECEIVED_VECTOR] = on_received,
		[SLUICE_VIF_SENT_VECTOR] = on_sent,
	};
	int nth, error;

	error = pci_alloc_irq_vectors(vif->pdev, SLUICE_VIF_VECTORS, SLUICE_VIF_VECTORS, PCI_IRQ_MSIX);
	if (error < 0)
		return error;
	for (nth = 0; nth < SLUICE_VIF_VECTORS; nth++) {
		error = devm_request_irq(&vif->pdev->dev, pci_irq_vector(vif->pdev, nth), handlers[nth],
					 0, KBUILD_MODNAME, vif);
		if (error)
			return error;
	}
	return 0;
}

static int vif_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct net_device *netdev = devm_alloc_etherdev(&pdev->dev, sizeof(struct vif));
	struct vif *vif;
	int error;

	if (!netdev)
		return -ENOMEM;
	vif = netdev_priv(netdev);
	*vif = (struct vif){ .netdev = netdev, .pdev = pdev };
	error = pcim_enable_device(pdev) ?: pci_request_regions(pdev, KBUILD_MODNAME);
	if (error)
		return error;
	pci_set_master(pdev);
	error = reach(vif) ?: listen(vif) ?: devm_add_action_or_reset(&pdev->dev, free_pages_of, vif) ?:
		make_pool(vif);
	if (error)
		return error;

	SET_NETDEV_DEV(netdev, &pdev->dev);
	pci_set_drvdata(pdev, vif);
	netdev->netdev_ops = &operations;
	netdev->ethtool_ops = &tools;
	/* The hypervisor lets no frame out that is from another address than it gave. */
	netdev->priv_flags |= IFF_LIVE_ADDR_CHANGE;
	netdev->hw_features = NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_TSO | NETIF_F_TSO6;
	netdev->features = netdev->hw_features | NETIF_F_RXCSUM;
	netdev->mtu = le16_to_cpu(*word(vif, SLUICE_VIF_MTU));
	netdev->max_mtu = netdev->mtu;
	eth_hw_addr_set(netdev, vif->structure + SLUICE_VIF_MAC);
	netif_napi_add(netdev, &vif->napi, vif_poll);
	netif_carrier_off(netdev);
	return register_netdev(netdev);
}

static void vif_remove(struct pci_dev *pdev)
{
	struct vif *vif = pci_get_drvdata(pdev);

	unregister_netdev(vif->netdev);
	hand_over(vif, NULL, 0);
}

/* Another kernel may come, which uses the pages for something else. */
static void vif_shutdown(struct pci_dev *pdev)
{
	struct vif *vif = pci_get_drvdata(pdev);

	rtnl_lock();
	dev_close(vif->netdev);
	rtnl_unlock();
}

static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(SLUICE_VENDOR, SLUICE_VIF_DEVICE) },
	{}
};
MODULE_DEVICE_TABLE(pci, ids);

static struct pci_driver vif_driver = {
	.name = KBUILD_MODNAME,
	.id_table = ids,
	.probe = vif_probe,
	.remove = vif_remove,
	.shutdown = vif_shutdown,
};
module_pci_driver(vif_driver);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Network interfaces of the Sluice hypervisor");
