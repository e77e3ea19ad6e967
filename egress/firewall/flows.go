package firewall

import (
	"errors"
	"fmt"

	"github.com/google/nftables/binaryutil"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Messages and attributes about connections (linux/netfilter/nfnetlink_conntrack.h).
const (
	deleteConnections = 2
	attrMark          = 8
	attrMarkMask      = 21
)

// Forget deletes the conntrack entries of queries, the sandbox's and the egress daemon's. They
// outlive the process that they were made for, and the rules that redirect look only at the first
// packet of an entry: one of before leads to a port that is not this process's. Only queries use
// these entries, so nothing else ends.
//
// Call it before the egress daemon asks a name server. With an error the entries stay until they
// time out: the sandbox's queries from the same ports are not answered until then.
func (f *Firewall) Forget() error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	// The kernel selects by the mark, so that the sandbox's entries, of any number, are not read.
	bit := binaryutil.BigEndian.PutUint32(queryBit)
	data, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: attrMark, Data: bit},
		{Type: attrMarkMask, Data: bit}})
	if err == nil {
		_, err = conn.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_CTNETLINK<<8 | deleteConnections,
				Flags: netlink.Request | netlink.Acknowledge},
			Data: append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}, data...),
		})
	}
	if err = errors.Join(err, conn.Close()); err != nil {
		return fmt.Errorf("delete the connections of before: %w", err)
	}
	return nil
}
