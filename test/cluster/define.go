package cluster

import (
	"context"
	"fmt"
	"time"
)

// definedWithin is how long the API server may take to serve new resources.
const definedWithin = 2 * time.Minute

// Define applies definitions of resources (files or directories) and returns when the API server
// serves them.
func (c *Cluster) Define(ctx context.Context, files ...string) error {
	for _, file := range files {
		if _, err := c.Kubectl(ctx, nil, "apply", "-f", file); err != nil {
			return err
		}
		if err := c.Defined(ctx, "-f", file); err != nil {
			return err
		}
	}
	return nil
}

// Defined returns when the API server serves the resources that the arguments of kubectl name.
func (c *Cluster) Defined(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, definedWithin)
	defer cancel()
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for {
		// kubectl gives up at once on a definition that has no conditions at all yet.
		_, err := c.Kubectl(ctx, nil,
			append([]string{"wait", "--for=condition=Established", "--timeout=60s"}, args...)...)
		if err == nil {
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("the resources are not served within %v: %w", definedWithin, err)
		}
	}
}
