package wall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// errMalformed says that the kernel described a set in a way that is not understood.
var errMalformed = errors.New("the kernel's answer is malformed")

// dumpBuffer is as much as the kernel tells at once, in bytes. It goes through the set from its beginning for each part of the answer, and
// the parts are as large as what was asked for before, so the usual 4096 bytes made it go through thousands of elements a hundred times.
const dumpBuffer = 32 << 10

// elements reads the addresses of a set and for how long they stay. The nftables library does that, too, but in small parts (see
// dumpBuffer), and with more than half a kilobyte of garbage for each of thousands of elements.
func (w *Wall) elements(set *nftables.Set) ([]Address, error) {
	data, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: text(set.Table.Name)},
		{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: text(set.Name)},
	})
	if err != nil {
		return nil, fmt.Errorf("marshal: %w", err)
	}
	asked, err := w.reader.Send(netlink.Message{
		Header: netlink.Header{
			Type:  unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETSETELEM,
			Flags: netlink.Request | netlink.Dump,
		},
		Data: append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, data...),
	})
	if err != nil {
		return nil, err
	}
	var all []Address
	buffer := make([]byte, dumpBuffer)
	for {
		messages, err := receive(w.reader, buffer)
		if err != nil {
			return nil, err
		}
		for _, message := range messages {
			switch {
			case message.Header.Seq != asked.Header.Sequence: // of an earlier question that failed on the way
			case message.Header.Type == unix.NLMSG_DONE, message.Header.Type == unix.NLMSG_ERROR:
				return all, failure(message.Data)
			case message.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWSETELEM:
				if all, err = appendElements(all, message.Data); err != nil {
					return nil, err
				}
			}
		}
	}
}

// receive reads the messages that fit into the buffer, which holds them until it is used again.
func receive(conn *netlink.Conn, buffer []byte) ([]syscall.NetlinkMessage, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var length int
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		for {
			if length, _, failed = unix.Recvfrom(int(fd), buffer, unix.MSG_TRUNC); failed != unix.EINTR {
				return failed != unix.EAGAIN
			}
		}
	})
	switch {
	case err != nil:
		return nil, err
	case failed != nil:
		return nil, fmt.Errorf("receive: %w", failed)
	case length > len(buffer):
		return nil, errMalformed
	}
	return syscall.ParseNetlinkMessage(buffer[:length])
}

// failure reads the error number with which an answer ends; 0 is none.
func failure(data []byte) error {
	if len(data) < 4 {
		return errMalformed
	}
	if number := int32(binary.NativeEndian.Uint32(data)); number != 0 {
		return syscall.Errno(-number)
	}
	return nil
}

// appendElements appends what a message of type NFT_MSG_NEWSETELEM tells. What is left out would be an address that nobody takes away,
// so a part that is not understood is an error.
func appendElements(all []Address, message []byte) ([]Address, error) {
	const header = 4 // of nfnetlink
	if len(message) < header {
		return nil, errMalformed
	}
	err := eachAttribute(message[header:], func(kind uint16, list []byte) error {
		if kind != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return nil
		}
		return eachAttribute(list, func(_ uint16, element []byte) error {
			address, err := parseElement(element)
			all = append(all, address)
			return err
		})
	})
	return all, err
}

func parseElement(element []byte) (Address, error) {
	var address Address
	err := eachAttribute(element, func(kind uint16, value []byte) error {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			return eachAttribute(value, func(kind uint16, key []byte) error {
				if kind == unix.NFTA_DATA_VALUE {
					address.Addr, _ = netip.AddrFromSlice(key)
				}
				return nil
			})
		case unix.NFTA_SET_ELEM_EXPIRATION:
			if len(value) != 8 {
				return errMalformed
			}
			address.For = time.Duration(binary.BigEndian.Uint64(value)) * time.Millisecond
		}
		return nil
	})
	if err == nil && !address.Addr.IsValid() {
		err = errMalformed
	}
	return address, err
}

// eachAttribute calls do for each of the netlink attributes, with its kind without flags, until it fails.
func eachAttribute(data []byte, do func(kind uint16, value []byte) error) error {
	const header, align = unix.SizeofNlAttr, unix.NLA_ALIGNTO
	for len(data) > 0 {
		if len(data) < header {
			return errMalformed
		}
		length := int(binary.NativeEndian.Uint16(data))
		if length < header || length > len(data) {
			return errMalformed
		}
		kind := binary.NativeEndian.Uint16(data[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		if err := do(kind, data[header:length]); err != nil {
			return err
		}
		data = data[min(len(data), (length+align-1)/align*align):]
	}
	return nil
}
