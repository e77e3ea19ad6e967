package network

import (
	"errors"
	"fmt"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/internal/traffic"
)

// WatchTraffic watches what is sent to an attached container, by its address or a published port.
// Containers that share its network are not distinguished. The caller has the Watch report. Errors
// wrap [engine.ErrNotRunning] when the container has no network any more, or
// [engine.ErrNetwork].
func (n *Network) WatchTraffic(container string) (*traffic.Watch, error) {
	watch, err := n.watchTraffic(container)
	if err != nil && !errors.Is(err, engine.ErrNotRunning) {
		return nil, fmt.Errorf("%w: %w", engine.ErrNetwork, err)
	}
	return watch, err
}

func (n *Network) watchTraffic(container string) (*traffic.Watch, error) {
	n.mu.Lock()
	a, closed := n.attached[container], n.closed
	n.mu.Unlock()
	if closed {
		return nil, errClosed
	}
	if a == nil {
		return nil, fmt.Errorf("%w: its network is detached", engine.ErrNotRunning)
	}
	// The bridge sends to a port what is for the container alone, but for what is for everyone.
	port, err := n.bridge.port(a.Address)
	if err != nil {
		return nil, fmt.Errorf("look up the bridge port of %v: %w", a.Address, err)
	}
	if port == nil {
		return nil, fmt.Errorf("%w: its network is gone", engine.ErrNotRunning)
	}
	return traffic.Open(port.Attrs().Index, a.Address)
}
