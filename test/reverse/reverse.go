// Package reverse makes reverse proxies of net/http/httputil that tests can rely on under load.
package reverse

import (
	"net/http"
	"net/http/httputil"
)

// Handler returns a handler that forwards requests through a proxy.
//
// Without full duplex, net/http closes the body of a request when the response begins. The
// transport of a proxy looks once more whether a body of a known length has ended. On a busy
// machine the response may have begun by then: the transport gets an error for the body, closes
// its connection, and the client has a part of the response.
func Handler(proxy *httputil.ReverseProxy) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// HTTP/2 is full duplex anyway, and has an error for this.
		_ = http.NewResponseController(w).EnableFullDuplex()
		proxy.ServeHTTP(w, r)
	})
}
