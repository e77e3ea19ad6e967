package view

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
)

// Route is where an ingress finds a sandbox.
type Route struct {
	ID string
	// State is Running for a sandbox that sleeps and that requests wake, too: its execd does.
	State lifecycle.State
	// Address is the host and port of the sandbox's execd, empty while there is none, and Token
	// what it demands.
	Address string
	Token   string
}

// RouteTable is kept by FollowRoutes, with one call at a time.
type RouteTable interface {
	Replace(all []Route)
	Update(route Route)
	Forget(id string)
}

// RouteOptions says which cluster an ingress follows.
type RouteOptions struct {
	Kubeconfig, Namespace string // as Connect takes them
	Logger                zerolog.Logger
}

// FollowRoutes keeps an ingress's table as the cluster says, until ctx ends: while the API server
// does not answer, it stays as it is. It returns an error when the options do not say how the
// cluster is reached.
func FollowRoutes(ctx context.Context, options RouteOptions, table RouteTable) error {
	connection, err := Connect(options.Kubeconfig, options.Namespace)
	if err != nil {
		return err
	}
	defer connection.Close()
	logger := options.Logger.With().Str("namespace", connection.Namespace).Logger()
	to := &routes{ctx: ctx, table: table, api: connection.API, logger: logger, known: make(map[types.UID]*tokens), unread: make(map[types.UID]*Entry)}
	f := &follower{api: connection.API, namespace: connection.Namespace, logger: logger, sink: to, listed: func(err error) {
		if err == nil {
			logger.Info().Msg("routes follow the BatchSandboxes of the cluster")
		}
	}}
	var reading sync.WaitGroup
	reading.Go(to.readUnread)
	f.run(ctx)
	reading.Wait()
	return nil
}

// firstUnread is how long after a failure Secrets are read again, and longestUnread once one of
// them could not be read again.
const firstUnread, longestUnread = time.Second, 5 * time.Second

// routes is an ingress's table as a sink. It keeps the tokens, and of a resource nothing else once
// it has its route.
type routes struct {
	ctx    context.Context // of following
	api    getter
	logger zerolog.Logger

	mu    sync.Mutex // held while the table is changed
	table RouteTable
	known map[types.UID]*tokens // by the UID: an id may come back with another token
	// unread are the newest versions of the sandboxes whose Secret could not be read, which may
	// take until an operator has mended it: the watch does not wait for them.
	unread map[types.UID]*Entry
	failed time.Time // when the API server last did not answer for a Secret
}

// routeOf is the way to a sandbox: without an address while it has none, and while its Secret
// cannot be read. The caller holds mu.
func (r *routes) routeOf(e *Entry) Route {
	uid := e.Batch.UID
	route := Route{ID: e.Sandbox.ID, State: e.Sandbox.Status.State}
	if e.Passes() {
		route.State = lifecycle.StateRunning
	}
	if e.Address() == "" || route.State.Final() {
		delete(r.unread, uid)
		return route
	}
	if r.known[uid] == nil {
		r.known[uid] = e.tokens
	}
	token, ok := r.token(uid, e)
	if !ok {
		r.unread[uid] = e
		return route
	}
	route.Token, route.Address = token, net.JoinHostPort(e.Address(), strconv.Itoa(v1alpha1.PortExecd))
	return route
}

// token returns a sandbox's token, if it has been read. The caller holds mu.
func (r *routes) token(uid types.UID, e *Entry) (token string, ok bool) {
	if r.unread[uid] != nil {
		return "", false
	}
	return r.known[uid].held()
}

// parallelReads is how many Secrets are read at once: when an ingress starts, those of all
// sandboxes.
const parallelReads = 32

// readTokens reads the tokens that the routes of sandboxes need, so that they are known. It reads
// no Secret that readUnread is reading, and none right after the API server did not answer: to see
// that takes a while. Nothing waits for it but the watch.
func (r *routes) readTokens(entries []*Entry) {
	var reading errgroup.Group
	reading.SetLimit(parallelReads)
	for _, e := range entries {
		r.mu.Lock()
		if e.Address() == "" || e.Sandbox.Status.State.Final() || r.unread[e.Batch.UID] != nil || time.Since(r.failed) < firstUnread {
			r.mu.Unlock()
			continue
		}
		if r.known[e.Batch.UID] == nil {
			r.known[e.Batch.UID] = e.tokens
		}
		mine := r.known[e.Batch.UID]
		r.mu.Unlock()
		if _, known := mine.held(); known {
			continue
		}
		reading.Go(func() error {
			_, _, err := mine.read(r.ctx, r.api, e.Batch)
			if err == nil || r.ctx.Err() != nil {
				return nil
			}
			r.logger.Warn().Err(err).Str("sandbox_id", e.Sandbox.ID).Msg("cannot read the token of a sandbox; the ingress responds with 503 for it until then")
			var answer *lifecycle.Error
			if errors.As(err, &answer) && answer.Kind == lifecycle.KindUnavailable {
				r.mu.Lock()
				r.failed = time.Now()
				r.mu.Unlock()
			}
			return nil
		})
	}
	_ = reading.Wait() // no function returns an error
}

// readUnread reads again what could not be read, until ctx ends.
func (r *routes) readUnread() {
	for pause := firstUnread; clock.Sleep(r.ctx, pause); {
		r.mu.Lock()
		waiting := maps.Clone(r.unread)
		r.mu.Unlock()
		var reading errgroup.Group
		reading.SetLimit(parallelReads)
		var again atomic.Bool
		for uid, e := range waiting {
			reading.Go(func() error {
				if !r.readAgain(uid, e) {
					again.Store(true)
				}
				return nil
			})
		}
		_ = reading.Wait() // no function returns an error
		if pause = firstUnread; again.Load() {
			pause = longestUnread
		}
	}
}

// readAgain reports whether the sandbox has its route, or has ended.
func (r *routes) readAgain(uid types.UID, e *Entry) bool {
	r.mu.Lock()
	mine := r.known[uid]
	r.mu.Unlock()
	if mine == nil {
		return true
	}
	if _, _, err := mine.read(r.ctx, r.api, e.Batch); err != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if newest := r.unread[uid]; newest != nil {
		delete(r.unread, uid)
		r.table.Update(r.routeOf(newest))
	}
	return true
}

func (r *routes) replace(listed map[string]*Entry, _ uint64) {
	r.readTokens(slices.Collect(maps.Values(listed)))
	r.mu.Lock()
	defer r.mu.Unlock()
	all, live := make([]Route, 0, len(listed)), make(map[types.UID]bool, len(listed))
	for _, e := range listed {
		all = append(all, r.routeOf(e))
		live[e.Batch.UID] = true
	}
	maps.DeleteFunc(r.known, func(uid types.UID, _ *tokens) bool { return !live[uid] })
	maps.DeleteFunc(r.unread, func(uid types.UID, _ *Entry) bool { return !live[uid] })
	r.table.Replace(all)
}

func (r *routes) take(e *Entry, deleted bool) {
	if !deleted {
		r.readTokens([]*Entry{e})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if deleted {
		delete(r.known, e.Batch.UID)
		delete(r.unread, e.Batch.UID)
		r.table.Forget(e.Sandbox.ID)
	} else {
		r.table.Update(r.routeOf(e))
	}
}

func (r *routes) advance(uint64) {}
