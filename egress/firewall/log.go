package firewall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables/binaryutil"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sandbox.internal/egress/policy"
)

// Messages and attributes of nfnetlink_log (linux/netfilter/nfnetlink_log.h).
const (
	logPacket    = 0
	logConfig    = 1
	cfgCommand   = 1
	cfgMode      = 2
	cfgTimeout   = 4
	cfgThreshold = 5
	bindGroup    = 1
	copyPacket   = 2
	attrPayload  = 9
	attrPrefix   = 10

	// logDelay is how long the kernel may gather messages, in hundredths of a second.
	logDelay = 5
	// headers is how much of a packet the kernel copies, in bytes: an IPv4 header and the ports
	// behind it.
	headers = 64
)

// Packet is a packet that was decided: the first of a connection that is allowed, or any that is
// denied.
type Packet struct {
	Action   policy.Action
	DryRun   bool // it passed only because of a dry run
	Addr     netip.Addr
	Protocol uint8
	Port     uint16 // the destination's; 0 where the protocol has none
}

// Packets reads which packets were decided.
type Packets struct{ conn *netlink.Conn }

// Listen subscribes to what a firewall logs to the group. At most 5000 packets a second are
// reported of each kind of decision.
func Listen(group uint16) (*Packets, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	// A burst that does not fit is lost, which costs counts and nothing else.
	_ = conn.SetReadBuffer(1 << 20)
	_ = conn.SetOption(netlink.NoENOBUFS, true)
	mode := append(binaryutil.BigEndian.PutUint32(headers), copyPacket, 0)
	for _, attribute := range []netlink.Attribute{
		{Type: cfgCommand, Data: []byte{bindGroup}},
		{Type: cfgMode, Data: mode},
		{Type: cfgTimeout, Data: binaryutil.BigEndian.PutUint32(logDelay)},
		{Type: cfgThreshold, Data: binaryutil.BigEndian.PutUint32(64)},
	} {
		data, err := netlink.MarshalAttributes([]netlink.Attribute{attribute})
		if err == nil {
			_, err = conn.Execute(netlink.Message{
				Header: netlink.Header{Type: unix.NFNL_SUBSYS_ULOG<<8 | logConfig,
					Flags: netlink.Request | netlink.Acknowledge},
				Data: append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, byte(group >> 8),
					byte(group)}, data...),
			})
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("subscribe to log group %d: %w", group, err),
				conn.Close())
		}
	}
	return &Packets{conn: conn}, nil
}

// Run calls report for each packet, until ctx ends.
func (p *Packets) Run(ctx context.Context, report func(Packet)) error {
	stop := context.AfterFunc(ctx, func() { _ = p.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		messages, err := p.conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, syscall.ENOBUFS), errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("read the firewall's log: %w", err)
		}
		for _, message := range messages {
			if message.Header.Type != unix.NFNL_SUBSYS_ULOG<<8|logPacket || len(message.Data) < 4 {
				continue
			}
			if packet, ok := parse(message.Data[4:]); ok {
				report(packet)
			}
		}
	}
}

// Close ends the subscription. Call it once Run has returned.
func (p *Packets) Close() error {
	if err := p.conn.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close netlink: %w", err)
	}
	return nil
}

func parse(data []byte) (Packet, bool) {
	attributes, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return Packet{}, false
	}
	var packet Packet
	var known, whole bool
	for attributes.Next() {
		switch attributes.Type() {
		case attrPrefix:
			known = true
			switch strings.TrimRight(attributes.String(), "\x00") {
			case prefixPass:
				packet.Action = policy.Allow
			case prefixDeny:
				packet.Action = policy.Deny
			case prefixWould:
				packet.Action, packet.DryRun = policy.Deny, true
			default:
				known = false
			}
		case attrPayload:
			whole = packet.header(attributes.Bytes())
		}
	}
	return packet, known && whole && attributes.Err() == nil
}

// header reads an IPv4 header and reports whether there is one.
func (p *Packet) header(data []byte) bool {
	if len(data) < 20 || data[0]>>4 != 4 {
		return false
	}
	p.Protocol = data[9]
	p.Addr, _ = netip.AddrFromSlice(data[16:20])
	length := int(data[0]&15) * 4
	fragment := binary.BigEndian.Uint16(data[6:8]) & 0x1fff
	switch p.Protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP,
		unix.IPPROTO_UDPLITE:
		if fragment == 0 && len(data) >= length+4 {
			p.Port = binary.BigEndian.Uint16(data[length+2:])
		}
	}
	return true
}
