package firewall

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sandbox.internal/internal/nft"
)

// ownedTable is NFT_TABLE_F_OWNER: the table belongs to the socket that made it, and goes when the
// socket does.
const ownedTable = 2

// addPassMark makes the pass mark table on conn, which owns it. The nftables library cannot say
// which socket owns a table, so the messages are put together here.
func addPassMark(conn *netlink.Conn) error {
	messages := []netlink.Message{batchMessage(unix.NFNL_MSG_BATCH_BEGIN)}
	add := func(kind uint16, flags netlink.HeaderFlags, attributes []netlink.Attribute) error {
		data, err := netlink.MarshalAttributes(attributes)
		if err != nil {
			return fmt.Errorf("marshal: %w", err)
		}
		messages = append(messages, netlink.Message{
			Header: netlink.Header{
				Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind),
				Flags: netlink.Request | netlink.Acknowledge | netlink.Create | flags,
			},
			Data: append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, data...),
		})
		return nil
	}
	err := add(unix.NFT_MSG_NEWTABLE, netlink.Excl, []netlink.Attribute{
		{Type: unix.NFTA_TABLE_NAME, Data: nft.Text(passMarkTable)},
		{Type: unix.NFTA_TABLE_FLAGS, Data: binaryutil.BigEndian.PutUint32(ownedTable)},
	})
	if err != nil {
		return err
	}
	rule, err := netlink.MarshalAttributes(expressions(setPassBit()))
	if err != nil {
		return fmt.Errorf("marshal: %w", err)
	}
	for name, at := range map[string]*nftables.ChainHook{"out": nftables.ChainHookOutput,
		"in": nftables.ChainHookInput} {
		hook, err := netlink.MarshalAttributes([]netlink.Attribute{
			{Type: unix.NFTA_HOOK_HOOKNUM, Data: binaryutil.BigEndian.PutUint32(uint32(*at))},
			{Type: unix.NFTA_HOOK_PRIORITY,
				Data: binaryutil.BigEndian.PutUint32(uint32(0xffffffff + int64(passMarkAt) + 1))},
		})
		if err != nil {
			return fmt.Errorf("marshal: %w", err)
		}
		err = add(unix.NFT_MSG_NEWCHAIN, 0, []netlink.Attribute{
			{Type: unix.NFTA_CHAIN_TABLE, Data: nft.Text(passMarkTable)},
			{Type: unix.NFTA_CHAIN_NAME, Data: nft.Text(name)},
			{Type: unix.NLA_F_NESTED | unix.NFTA_CHAIN_HOOK, Data: hook},
			{Type: unix.NFTA_CHAIN_TYPE, Data: nft.Text("filter")},
		})
		if err != nil {
			return err
		}
		err = add(unix.NFT_MSG_NEWRULE, netlink.Append, []netlink.Attribute{
			{Type: unix.NFTA_RULE_TABLE, Data: nft.Text(passMarkTable)},
			{Type: unix.NFTA_RULE_CHAIN, Data: nft.Text(name)},
			{Type: unix.NLA_F_NESTED | unix.NFTA_RULE_EXPRESSIONS, Data: rule},
		})
		if err != nil {
			return err
		}
	}
	wanted := len(messages) - 1
	if _, err := conn.SendMessages(append(messages,
		batchMessage(unix.NFNL_MSG_BATCH_END))); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	for answered := 0; answered < wanted; {
		answers, err := conn.Receive()
		if err != nil {
			return err
		}
		answered += len(answers)
	}
	return nil
}

func expressions(all []expr.Any) []netlink.Attribute {
	attributes := make([]netlink.Attribute, 0, len(all))
	for _, e := range all {
		data, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil {
			panic(err) // the expressions are constants
		}
		attributes = append(attributes,
			netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: data})
	}
	return attributes
}

func batchMessage(kind uint16) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request},
		Data:   []byte{0, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
	}
}
