package app

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// listenForDebugging listens on an address that only this machine reaches.
func (a *App) listenForDebugging(address string) (err error) {
	if address == "" {
		return nil
	}
	if a.debug, err = net.Listen("tcp", address); err != nil {
		return fmt.Errorf("listen (server.debug_address): %w", err)
	}
	if bound, ok := a.debug.Addr().(*net.TCPAddr); !ok || !bound.IP.IsLoopback() {
		return fmt.Errorf("server.debug_address: %s is %s, which is not a loopback address", address, a.debug.Addr())
	}
	return nil
}

// serveDebugging serves profiles until the returned function is called.
func (a *App) serveDebugging() (stop func()) {
	if a.debug == nil {
		return func() {}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Handler: localOnly(mux), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(a.debug); !errors.Is(err, http.ErrServerClosed) {
			a.logger.Error().Err(err).Msg("the debug listener failed")
		}
	}()
	a.logger.Warn().Str("debug", a.debug.Addr().String()).Msg("pprof listening")
	return func() {
		_ = server.Close() // ends profiles that are being taken
		<-served
	}
}

// localOnly refuses requests that were made for another host: a page in a browser on this machine
// can have its own name lead here.
func localOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if !isLoopback(host) {
			http.Error(w, "the debug listener answers requests for loopback addresses only", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
