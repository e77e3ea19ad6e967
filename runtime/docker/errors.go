package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"sandbox.internal/runtime/engine"
)

// meaning says which of the contract's errors the engine's answer stands for. It depends on what
// was asked: a conflict is a taken name for a create, and a container in the wrong condition for a
// pause.
type meaning struct {
	notFound error // 404
	conflict error // 409
	invalid  error // 400
	other    error // everything else; nil when the contract has no word for it
}

var (
	forEngine    = meaning{}
	forContainer = meaning{notFound: engine.ErrNotFound, conflict: engine.ErrNotRunning,
		invalid: engine.ErrInvalid}
	// The engine refuses the log of a container that it is removing with a conflict.
	forLog    = meaning{notFound: engine.ErrNotFound, conflict: engine.ErrNotFound}
	forCreate = meaning{notFound: engine.ErrImage, conflict: engine.ErrExists,
		invalid: engine.ErrInvalid}
	forImage = meaning{notFound: engine.ErrImage, conflict: engine.ErrImage,
		invalid: engine.ErrImage, other: engine.ErrImage}
	forVolume = meaning{conflict: errVolumeInUse, invalid: engine.ErrInvalid}
)

// texts are the failures that the engine reports as its own (500), though the network or the
// request is the cause. Only their texts differ; the first match counts.
var texts = []struct {
	text string
	kind error
}{
	// The engine is being stopped: parts of it have ended, and its API still answers. Next to these
	// words others do not count.
	{"transport is closing", engine.ErrUnavailable},
	{"ttrpc: closed", engine.ErrUnavailable},
	{"containerd.sock", engine.ErrUnavailable}, // cannot be dialled
	{"failed to update store for object type *libnetwork", engine.ErrUnavailable},
	{"database not open", engine.ErrUnavailable},
	// A host port is taken, or iptables refused the rule.
	{"driver failed programming external connectivity", engine.ErrNetwork},
	{"port is already allocated", engine.ErrNetwork},
	{"failed to set up container networking", engine.ErrNetwork}, // the same since engine 28
	// The bridge has no address left, or its interface could not be made.
	{"no available IPv4 addresses", engine.ErrNetwork},
	{"failed to create endpoint", engine.ErrNetwork},
	// GPUs are asked for and the host has no driver for them.
	{"could not select device driver", engine.ErrInvalid},
	// A volume's SubPath is missing or leaves the volume (API 1.45 and newer check at start).
	{"cannot access path", engine.ErrInvalid},
	{"path escapes from parent", engine.ErrInvalid},
	// The OCI runtime refused: a limit, a device, a security profile, a mount.
	{"OCI runtime create failed", engine.ErrInvalid},
	{"failed to create shim", engine.ErrInvalid},
	{"failed to create task for container", engine.ErrInvalid}, // the same since engine 24
}

// explain wraps what a request failed with in the sentinel that it stands for.
func explain(op string, err error, m meaning) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", op, err)
	case unreachable(err):
		return describe(op, engine.ErrUnavailable, err)
	}
	if kind := m.kindOf(err); kind != nil {
		return describe(op, kind, err)
	}
	return fmt.Errorf("%s: %w", op, bounded{err})
}

func (m meaning) kindOf(err error) error {
	switch {
	case errdefs.IsNotFound(err) && m.notFound != nil:
		return m.notFound
	case errdefs.IsConflict(err) && m.conflict != nil:
		return m.conflict
	case errdefs.IsInvalidArgument(err) && m.invalid != nil:
		return m.invalid
	case m.other != nil:
		return m.other
	case errdefs.IsUnavailable(err):
		return engine.ErrUnavailable
	}
	for _, known := range texts {
		if strings.Contains(err.Error(), known.text) {
			return known.kind
		}
	}
	return nil
}

// describe keeps the engine's words and drops its error type: callers decide by our sentinels
// alone.
func describe(op string, kind, err error) error {
	return fmt.Errorf("%s: %w: %s", op, kind, bounded{err})
}

// maxMessage bounds the engine's message of an error, in bytes. A registry's answer is a part of
// it.
const maxMessage = 4096

// bounded is an error with the part of its message that clients may see.
type bounded struct{ error }

// Error leaves out the body of an HTTP answer that is not a registry's: the reference of an image
// can name any HTTP server that the engine reaches, such as one of the host's own.
func (b bounded) Error() string {
	message := strings.TrimPrefix(b.error.Error(), "Error response from daemon: ")
	const quote = " response body: "
	if at := strings.Index(message, quote); at >= 0 {
		message = message[:at+len(quote)-len(": ")]
	}
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "")
}

func (b bounded) Unwrap() error { return b.error }

// unreachable distinguishes a broken connection from an answer. An engine that exits during an
// answer causes an end of file.
func unreachable(err error) bool {
	var network net.Error
	return client.IsErrConnectionFailed(err) || errors.As(err, &network) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
