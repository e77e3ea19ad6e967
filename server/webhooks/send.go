package webhooks

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/runtime/engine/registries"
	"sandbox.internal/wire/sandboxhttp"
)

// maxAnswer is how much of an answer's body is read, in bytes, so that the connection can be used
// again. More ends the connection.
const maxAnswer = 4 << 10

// errGone is the answer 410: the receiver asks for no more.
var errGone = errors.New("the receiver answered 410 Gone")

// errPrivate is the refusal of an address. The log has the address with it.
var errPrivate = errors.New("not a public address; allow_private of the webhook permits it")

// refusal is an answer that accepts no event.
type refusal struct {
	status     int
	retryAfter time.Duration
}

func (r *refusal) Error() string {
	return strings.TrimSpace(fmt.Sprintf("the receiver answered %d %s", r.status, http.StatusText(r.status)))
}

// newClient returns a client that uses no proxy of the environment: a proxy would connect to
// addresses that are refused here. The address is checked when a connection is made, after the name
// was resolved, so that a name which resolves to something else later leads nowhere else.
func newClient(w Webhook, timeout time.Duration) *http.Client {
	o := sandboxhttp.Options{Timeout: timeout, IdleConnections: 1, MaxAnswer: maxAnswer}
	if !w.AllowPrivate {
		o.Admit = public
	}
	return sandboxhttp.NewClient(o)
}

// public refuses every address that is not a public one, or that is of this machine.
func public(address netip.AddrPort) error {
	if ip := address.Addr().Unmap(); registries.IsInternal(ip) || registries.IsOwn(ip) {
		return errPrivate
	}
	return nil
}

// send sends a request, and returns no error when the receiver has accepted it.
func (h *hook) send(ctx context.Context, id string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.webhook.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	now := h.options.Clock()
	timestamp := strconv.FormatInt(now.Unix(), 10)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "sandbox-server")
	request.Header.Set("Webhook-Id", id)
	request.Header.Set("Webhook-Timestamp", timestamp)
	signatures := sign(h.webhook.Key, id, timestamp, body)
	if h.webhook.PreviousKey != nil {
		signatures += " " + sign(h.webhook.PreviousKey, id, timestamp, body)
	}
	request.Header.Set("Webhook-Signature", signatures)
	response, err := h.client.Do(request)
	if err != nil {
		return withoutURL(err)
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body) // bounded by the client in bytes and time
	switch status := response.StatusCode; {
	case status/100 == 2:
		return nil
	case status == http.StatusGone:
		return errGone
	default:
		return &refusal{status, retryAfter(response.Header.Get("Retry-After"), now)}
	}
}

// withoutURL takes the URL out of an error of net/http, because its path may hold a secret.
func withoutURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// sign returns the signature of a request.
func sign(key []byte, id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// retryAfter reads the header of that name: seconds or a time. Anything else is 0.
func retryAfter(text string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
