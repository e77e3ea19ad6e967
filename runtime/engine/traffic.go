package engine

import "context"

// Traffic is what an [Engine] implements that reports packets on their way to a container, also
// while it is frozen. Errors are as of an Engine.
type Traffic interface {
	// WatchTraffic calls notify for packets to the container that open a connection or carry data,
	// by whichever address or published port they come, until stop is called. Packets are not held
	// back: those that come while the container is frozen are received when it is thawed. notify
	// must be quick. It is called for the first such packet after WatchTraffic has returned, and may
	// be called again, also once while stop runs. When packets may have been missed, it is called
	// too: before WatchTraffic returns, for a frozen container that has connections which it has not
	// accepted, or data which it has not read. WatchTraffic returns [ErrNotFound], [ErrNotRunning],
	// and [ErrInvalid] for a container that shares the network of its host, or has none.
	WatchTraffic(ctx context.Context, id string, notify func()) (stop func(), err error)
}
