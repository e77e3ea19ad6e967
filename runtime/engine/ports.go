package engine

import "context"

// Ports is what an [Engine] implements whose containers keep their published ports while they are
// [StatusStopped]. Errors are as of an Engine.
type Ports interface {
	// HoldConnections has new connections to the published ports of a container wait, from now on
	// and until the container is thawed, or has been stopped and is started again: then they are
	// connected to it once it listens, with what the clients have sent. HoldConnections is for a
	// container that is about to be stopped, or is. Notify, which must be quick, is called for each
	// connection. A connection that has waited for 30 seconds is closed, and so are those beyond a
	// number of them. Release lets later connections wait no more; those that wait go on. It
	// succeeds at any time, and is called once the container runs, too. HoldConnections returns
	// [ErrNotFound], [ErrNotRunning] for a container without a published port, and [ErrInvalid] for
	// one that has no network of its own.
	HoldConnections(ctx context.Context, id string, notify func()) (release func(), err error)
}
