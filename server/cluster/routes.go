package cluster

import (
	"context"
	"net"
	"strconv"
	"time"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

// Route is where a gateway finds a sandbox.
type Route struct {
	ID    string
	State lifecycle.State
	// Address is the host and port of the sandbox's execd, empty while there is none, and Token what it demands.
	Address string
	Token   string
}

// RouteTable is kept by FollowRoutes, from one goroutine.
type RouteTable interface {
	Replace(all []Route)
	Update(route Route)
	Forget(id string)
}

// FollowRoutes keeps a gateway's table as the cluster says, until ctx ends: while the API server does not answer, it stays as it is.
// Of the options it takes Kubeconfig, Namespace and Logger. It returns an error when they do not tell how the cluster is reached.
func FollowRoutes(ctx context.Context, options Options, to RouteTable) error {
	if options.Clock == nil {
		options.Clock = time.Now
	}
	c, err := connect(options)
	if err != nil {
		return err
	}
	defer c.close()
	c.routes = to
	c.ctx, c.cancel = context.WithCancel(ctx)
	defer c.cancel()
	for {
		version, err := c.list(ctx)
		if err == nil {
			c.Logger.Info().Str("namespace", c.Namespace).Msg("routes follow the BatchSandboxes of the cluster")
			c.follow(version)
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		c.Logger.Warn().Err(err).Str("namespace", c.Namespace).Msg("the cluster's BatchSandboxes cannot be read yet")
		sleep(ctx, time.Second)
	}
}

func routeOf(e *entry) Route {
	route := Route{ID: e.sandbox.ID, State: e.sandbox.Status.State, Token: e.token()}
	if address := e.address(); address != "" {
		route.Address = net.JoinHostPort(address, strconv.Itoa(v1alpha1.PortExecd))
	}
	return route
}

// noRoutes is the table of the service itself, which needs none.
type noRoutes struct{}

func (noRoutes) Replace([]Route) {}
func (noRoutes) Update(Route)    {}
func (noRoutes) Forget(string)   {}
