package jupyter

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/coder/websocket"
)

// webSocket is a kernel's WebSocket.
type webSocket struct {
	conn     *websocket.Conn
	arrivals *arrivals
}

// dial opens the WebSocket of a kernel. Without ctx, a server may keep us waiting until the kernel
// is up.
func (s *Server) dial(ctx context.Context, kernelID, session string, arrivals *arrivals) (webSocket, error) {
	address := s.base.JoinPath("api/kernels", kernelID, "channels")
	address.RawQuery = "session_id=" + session
	conn, answer, err := websocket.Dial(ctx, address.String(),
		&websocket.DialOptions{HTTPClient: s.client, HTTPHeader: s.header()})
	if err != nil {
		if answer != nil && answer.StatusCode != 101 {
			return webSocket{}, newStatusError(answer)
		}
		return webSocket{}, err
	}
	conn.SetReadLimit(-1) // receive has its own
	return webSocket{conn, arrivals}, nil
}

// send writes a message. A context that ends in the middle breaks the connection.
func (s webSocket) send(ctx context.Context, m message) error {
	encoded, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encoding a %s: %w", m.Header.Type, err)
	}
	return s.conn.Write(ctx, websocket.MessageText, encoded)
}

// receive returns the next message. It returns an [oversizeError] for one that has been passed
// over.
func (s webSocket) receive(ctx context.Context) (message, error) {
	kind, reader, err := s.conn.Reader(ctx)
	if err != nil {
		return message{}, err
	}
	reader = s.arrivals.count(reader)
	data, err := io.ReadAll(io.LimitReader(reader, maxMessage+1))
	if err != nil {
		return message{}, err
	}
	if len(data) > maxMessage {
		rest, err := io.Copy(io.Discard, reader)
		if err != nil {
			return message{}, err
		}
		return message{}, &oversizeError{uint64(len(data)) + uint64(rest)}
	}
	defer s.arrivals.arrived()()
	if kind == websocket.MessageBinary {
		if data, err = jsonPart(data); err != nil {
			return message{}, err
		}
	}
	var m message
	if err := json.Unmarshal(data, &m); err != nil {
		return message{}, fmt.Errorf("a message that is no JSON: %w", err)
	}
	return m, nil
}

func (s webSocket) close() { _ = s.conn.CloseNow() }

// jsonPart takes the message out of a frame that has binary buffers, too: a count, that many
// offsets, and the parts, the first of which is the message. The buffers belong to widgets; we have
// none.
func jsonPart(frame []byte) ([]byte, error) {
	bad := errors.New("a binary message of unknown form")
	if len(frame) < 8 {
		return nil, bad
	}
	count := uint64(binary.BigEndian.Uint32(frame))
	start, end := uint64(binary.BigEndian.Uint32(frame[4:])), uint64(len(frame))
	if count > 1 {
		if len(frame) < 12 {
			return nil, bad
		}
		end = uint64(binary.BigEndian.Uint32(frame[8:]))
	}
	if count == 0 || start > end || end > uint64(len(frame)) {
		return nil, bad
	}
	return frame[start:end], nil
}

// dialQuick connects to a server that writes many small messages with Nagle's algorithm on, as
// Tornado does: it holds each one back until we have acknowledged the one before, and our system
// would do that 40 ms later, in the hope of an answer to send it with.
func dialQuick(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			return &quickConn{TCPConn: tcp, raw: raw}, nil
		}
	}
	return conn, nil
}

// quickConn acknowledges at once what it has read. The option does not last, so it is set again and
// again; a refusal costs only time.
type quickConn struct {
	*net.TCPConn
	raw syscall.RawConn
}

func (c *quickConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	_ = c.raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_QUICKACK, 1)
	})
	return n, err
}
