// Package listen serves HTTP with bounds that net/http lacks: on connections, on bodies in time,
// and on the end of a service.
package listen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 256 << 10

	// handlerExit is how long handlers have, once cut off, to notice it.
	handlerExit = time.Second
)

// ErrStopping is the cause of a request context that ends because the service does.
var ErrStopping = errors.New("the service is stopping")

// Listener returns a listener of the socket that a process was started with, which it closes. The
// socket is named after its environment variable. Without one it listens at the address.
func Listener(inherited *os.File, network, address string) (net.Listener, error) {
	if inherited == nil {
		listener, err := net.Listen(network, address)
		if err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		return listener, nil
	}
	defer func() { _ = inherited.Close() }() // the listener has a copy
	listener, err := net.FileListener(inherited)
	if err != nil {
		return nil, fmt.Errorf("environment variable %s: %w", inherited.Name(), err)
	}
	return listener, nil
}

// Options configures [Serve].
type Options struct {
	// Logger receives what net/http has to say.
	Logger zerolog.Logger
	// Grace is how long requests in flight may go on after the stop. With 0 they are
	// cut off at once.
	Grace time.Duration
	// AwaitUpgrades gives the grace also to connections that use another protocol by
	// now, such as WebSockets. Otherwise they are cut off when all else has ended.
	AwaitUpgrades bool
	// HTTP2 permits HTTP/2 without TLS.
	HTTP2 bool
	// ReadHeaderTimeout and IdleTimeout bound how long a connection may take to send a
	// header and may be without a request; MaxHeaderBytes bounds the header. 0 means 10
	// seconds, 2 minutes and 256 KiB.
	ReadHeaderTimeout time.Duration
	IdleTimeout       time.Duration
	MaxHeaderBytes    int
	// BodyTimeout bounds how long a small body may take to arrive as a whole, and the next part of
	// any other; 0 means 25 seconds. [WithoutDeadline] and [ForwardBody] lift it. The part of a
	// body that a handler has not read has 4 seconds, and then the connection is closed.
	BodyTimeout time.Duration
	// MaxUnauthenticated bounds the TCP connections on which no request has been
	// authenticated, and what they have sent of their requests to 4 KiB on average. For
	// one more the oldest of them is closed, and for one more byte the oldest that has
	// sent more than that. 0 means no bound.
	MaxUnauthenticated int
	// MaxConnections bounds the TCP connections in all. A connection beyond the bound waits until
	// another one ends, or takes the place of the oldest without an authenticated request, where
	// those are bounded. 0 means no bound.
	MaxConnections int
	// Arrivals, if not nil, follows what arrives. It is for one call of Serve.
	Arrivals *Arrivals
}

// Serve answers on ln until ctx ends. Then it stops accepting, closes idle
// connections, ends streams through [Draining], and waits for the requests in
// flight, at most for the grace; those that are left are cut off: their contexts are
// cancelled and their connections closed. It returns nil after such a stop, or the
// listener's error. It closes ln in any case.
//
// There is no write timeout: streams and downloads may take hours and guard each
// write themselves.
func Serve(ctx context.Context, ln net.Listener, handler http.Handler, options Options) error {
	draining, drain := context.WithCancel(context.WithoutCancel(ctx))
	defer drain()
	base := context.WithValue(context.WithoutCancel(ctx), drainKey{}, draining)
	// Requests outlive ctx by the grace, so they must not be cancelled with it.
	base, cut := context.WithCancelCause(base)
	defer cut(ErrStopping)

	running := newInflight(withResets(withRequestBodies(handler, cmp.Or(options.BodyTimeout, bodyTime))))
	server := &http.Server{
		Handler:           running,
		ReadHeaderTimeout: cmp.Or(options.ReadHeaderTimeout, readHeaderTimeout),
		IdleTimeout:       cmp.Or(options.IdleTimeout, idleTimeout),
		MaxHeaderBytes:    cmp.Or(options.MaxHeaderBytes, maxHeaderBytes),
		BaseContext:       func(net.Listener) context.Context { return base },
		// The handler answers OPTIONS * like any other path that it has not: with a request id and
		// a body.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     log.New(errorLog{options.Logger}, "", 0),
	}
	options.Arrivals.listen(ln)
	connections := newConnections(ln, options)
	server.ConnState = connections.changed
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, conn)
	}
	if options.HTTP2 {
		server.Protocols = new(http.Protocols)
		server.Protocols.SetHTTP1(true)
		server.Protocols.SetUnencryptedHTTP2(true)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(patientListener{connections}) }()

	var failure error
	select {
	case err := <-served:
		failure = fmt.Errorf("serve %s: %w", ln.Addr(), err)
		drain()
	case <-ctx.Done():
		drain()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), options.Grace)
		err := server.Shutdown(grace)
		if options.AwaitUpgrades && err == nil {
			err = running.done(grace)
		}
		cancel()
		if err != nil {
			options.Logger.Warn().Dur("grace_ms",
				options.Grace).Msg("requests cut off: the grace is over")
		}
		<-served
	}
	cut(ErrStopping)
	// The listener is closed already; another error of Close cannot be handled.
	_ = server.Close()
	if !running.wait(handlerExit) {
		options.Logger.Warn().Msg("a handler is still running after its request was cut off")
	}
	return failure
}

// withResets resets the connection of an HTTP/1.0 answer that is aborted. net/http closes it, and
// that is how such an answer ends when it is whole, too.
func withResets(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoAtLeast(1, 1) {
			next.ServeHTTP(w, r)
			return
		}
		whole := false
		// Without recover, so that net/http logs the stack of a panic.
		defer func() {
			if whole {
				return
			}
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return // the handler has the connection
			}
			if tcp, ok := conn.(interface{ SetLinger(sec int) error }); ok {
				_ = tcp.SetLinger(0) // it fails for a connection that is closed
			}
			_ = conn.Close()
		}()
		next.ServeHTTP(w, r)
		whole = true
	})
}

// patientListener has net/http try again when the kernel lacks for a connection what another
// process may give back: memory, or watches of epoll, which are counted per user.
type patientListener struct{ net.Listener }

func (l patientListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ENOBUFS) {
		return nil, temporaryError{err}
	}
	return conn, err
}

// temporaryError is one after which net/http accepts again, as after EMFILE.
type temporaryError struct{ error }

func (e temporaryError) Unwrap() error { return e.error }

// Timeout and Temporary implement [net.Error].
func (temporaryError) Timeout() bool { return false }

func (temporaryError) Temporary() bool { return true }

type drainKey struct{}

// Draining is closed when the service begins to stop. A handler that streams should
// then finish its stream within the grace. It is nil, which blocks forever, outside
// of [Serve].
func Draining(ctx context.Context) <-chan struct{} {
	if draining := drainOf(ctx); draining != nil {
		return draining.Done()
	}
	return nil
}

// UntilDraining returns a context that ends with ctx, when cancel is called, and also
// when the service begins to stop: for a stream that waits, and should rather come to
// its end than be cut off. A handler whose answer is not whole then returns the context's
// cause: a 503, or, once the answer has begun, its abort.
func UntilDraining(ctx context.Context) (context.Context, context.CancelFunc) {
	draining := drainOf(ctx)
	ctx, cancel := context.WithCancelCause(ctx)
	if draining == nil {
		return ctx, func() { cancel(nil) }
	}
	forget := context.AfterFunc(draining, func() { cancel(ErrStopping) })
	return ctx, func() {
		forget()
		cancel(nil)
	}
}

func drainOf(ctx context.Context) context.Context {
	draining, _ := ctx.Value(drainKey{}).(context.Context)
	return draining
}

// errorLog takes net/http's complaints, which are about single connections.
type errorLog struct{ logger zerolog.Logger }

func (l errorLog) Write(p []byte) (int, error) {
	l.logger.Warn().Str("source", "net/http").Msg(strings.TrimSpace(string(p)))
	return len(p), nil
}
