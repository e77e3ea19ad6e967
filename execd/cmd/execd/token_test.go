package main_test

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"sandbox.internal/openapi/document"
	"sandbox.internal/test/wait"
)

// TestTokenStaysOutOfTheLog asks everything that can be asked, with the token where it belongs and
// everywhere that it does not, of a daemon that logs all it has.
func TestTokenStaysOutOfTheLog(t *testing.T) {
	t.Parallel()
	d := serve(t, []string{"--log-level=7", "--access-token=" + token})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: wait.Patience()}
	send := func(method, target, body string, headers http.Header) {
		t.Helper()
		// A stream without an end is left once it has begun.
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		request, err := http.NewRequestWithContext(ctx, method, "http://"+d.address, strings.NewReader(body))
		must(t, err)
		request.URL.Opaque = target // as it is, also where a URL would be written in another way
		request.Header = headers
		response, err := client.Do(request)
		must(t, err)
		defer response.Body.Close()
		if response.Header.Get("Content-Type") != "text/event-stream" {
			_, err := io.Copy(io.Discard, response.Body)
			must(t, err)
		}
	}
	doc, err := document.LoadExecd()
	must(t, err)
	operations := 0
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			operations++
			filled := strings.NewReplacer("{id}", token, "{context_id}", token).Replace(path)
			headers := func() http.Header {
				return http.Header{
					"X-Execd-Access-Token": {token}, "Content-Type": {"application/json"}, "Authorization": {"Bearer " + token}, "Cookie": {"token=" + token},
					"X-Request-Id": {token}, "User-Agent": {token}, "Referer": {"http://x/?token=" + token}, "Last-Event-Id": {token}, "Range": {token},
				}
			}
			send(method, filled, "", headers())
			send(method, filled+"?token="+token+"&path=/"+token+"&id="+token+"&language="+token+"&cursor="+token, `{"command":"`+token, headers())
			send(method, filled+"?path=%zz"+token, "", headers())
			send(method, filled+"/"+token+"?X-EXECD-ACCESS-TOKEN="+url.QueryEscape(token), token, headers())
			wrong := headers()
			wrong["X-Execd-Access-Token"] = []string{token + "x", token}
			send(method, filled+"?access_token="+token, `{"`+token+`":1}`, wrong)
		}
	}
	if operations < 30 {
		t.Errorf("only %d operations were asked", operations)
	}
	key := func() http.Header { return http.Header{"X-Execd-Access-Token": {token}} }
	for _, target := range []string{"/" + token, "/proxy/" + token + "/", "/proxy/1/" + token + "?token=" + token, "/proxy/" + d.port() + "/" + token, "/%74" + token, "//" + token + "@x/"} {
		send(http.MethodGet, target, "", key())
		send(http.MethodGet, target, "", http.Header{})
	}
	send(token, "/ping", "", key())
	send(http.MethodPost, "/command", `{"command":"`+token+`","cwd":"/`+token+`","envs":{"`+token+`=":"x"}}`, http.Header{"X-Execd-Access-Token": {token}, "Content-Type": {token}})
	send(http.MethodPost, "/command", `{"command":"echo `+token+`"}`, http.Header{"X-Execd-Access-Token": {token}, "Content-Type": {"application/json"}})
	d.stop(t)

	log, err := os.ReadFile(d.log)
	must(t, err)
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, token) {
			t.Errorf("the log shows the token: %s", line)
		}
	}
	for _, want := range []string{`"level":"debug"`, `"operation":"runCode"`, `"operation":"watchFiles"`, "[redacted]"} {
		if !strings.Contains(string(log), want) {
			t.Errorf("the log does not have %s", want)
		}
	}
}
