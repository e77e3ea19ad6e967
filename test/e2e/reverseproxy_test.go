package e2e_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sandbox "sandbox.internal/clients/go"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/e2e/conformance/localengine"
	"sandbox.internal/test/loopback"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

// TestReverseProxies puts nginx and Caddy in front of a service, with TLS and with what
// docs/operate.md says, and does through each what a reverse proxy may break: streams, input
// while there is output, bodies without a bound, WebSockets, and links that begin with https.
func TestReverseProxies(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	for name, begin := range map[string]func(t *testing.T, service, directory, address string) *exec.Cmd{
		"nginx": nginx, "caddy": caddy,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the other tests may take longer than a sandbox lives
			id := s.Running(t, idle())
			directory := t.TempDir()
			address := fmt.Sprintf("127.0.0.1:%d", loopback.Port(t))
			trusted := certificate(t, directory)
			proxy := begin(t, s.URL, directory, address)
			var printed bytes.Buffer
			proxy.Stdout, proxy.Stderr, proxy.Dir = &printed, &printed, directory
			if err := proxy.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = proxy.Process.Signal(os.Interrupt)
				_ = proxy.Wait()
				if t.Failed() {
					t.Logf("the proxy has printed:\n%s", printed.String())
				}
			})
			transport := &http.Transport{
				TLSClientConfig: &tls.Config{RootCAs: trusted}, ForceAttemptHTTP2: true}
			t.Cleanup(transport.CloseIdleConnections)
			through(t, &http.Client{Transport: transport, Timeout: wait.Patience()}, "https://"+address, id)
		})
	}
}

// through does everything with one sandbox, by the URL of a proxy.
func through(t *testing.T, web *http.Client, url, id string) {
	ctx := wait.Context(t)
	status := func(path string) int {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := web.Do(request)
		if err != nil {
			return 0
		}
		response.Body.Close()
		return response.StatusCode
	}
	wait.Until(t, "the service answers through the proxy",
		func() bool { return status("/health") == http.StatusOK })
	if got := status("/metrics"); got != http.StatusNotFound {
		t.Errorf("/metrics through the proxy: status %d", got)
	}
	client, err := sandbox.New(&sandbox.Options{URL: url, Key: conformance.AdminKey, HTTPClient: web})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	box, err := client.Connect(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("stream", func(t *testing.T) { conversation(t, ctx, box) })
	t.Run("files", func(t *testing.T) { largeFile(t, ctx, box) })
	t.Run("terminal", func(t *testing.T) { terminalOf(t, ctx, box) })
	t.Run("link", func(t *testing.T) {
		signed, err := box.SignedEndpoint(ctx, 8000, time.Minute)
		if err != nil || !strings.HasPrefix(signed.URL, url+"/") {
			t.Errorf("%+v, %v", signed, err)
		}
	})
}

// conversation has a command answer each line of its input before the next one is sent, which a
// proxy that buffers in one of the directions ends.
func conversation(t *testing.T, ctx context.Context, box *sandbox.Sandbox) {
	started, err := box.Commands.Start(ctx, "while read -r line; do echo \"got $line\"; done",
		&sandbox.RunOptions{OpenStdin: true})
	if err != nil {
		t.Fatal(err)
	}
	input, line := started.Stdin(ctx), 0
	send := func() {
		if _, err := fmt.Fprintf(input, "%d\n", line); err != nil {
			t.Fatal(err)
		}
	}
	send()
	for output, err := range started.Outputs(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("got %d\n", line); string(output.Data) != want {
			t.Fatalf("the output is %q, want %q", output.Data, want)
		}
		if line++; line == 10 {
			if err := input.Close(); err != nil {
				t.Fatal(err)
			}
			break
		}
		send()
	}
	result, err := started.Wait(ctx, nil)
	if err != nil || result.ExitCode == nil || *result.ExitCode != 0 {
		t.Errorf("%+v, %v", result, err)
	}
}

// largeFile moves a file of a size that proxies refuse by their defaults, in both directions.
func largeFile(t *testing.T, ctx context.Context, box *sandbox.Sandbox) {
	content := make([]byte, 8<<20)
	source := random.New(t)
	for i := range content {
		content[i] = byte(source.Uint32())
	}
	name := "/tmp/" + strings.ReplaceAll(t.Name(), "/", "-")
	if err := box.Files.WriteFrom(ctx, name, bytes.NewReader(content), nil); err != nil {
		t.Fatal(err)
	}
	reader, err := box.Files.Open(ctx, name, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	digest := sha256.New()
	size, err := io.Copy(digest, reader)
	if want := sha256.Sum256(content); err != nil || size != int64(len(content)) ||
		!bytes.Equal(digest.Sum(nil), want[:]) {
		t.Errorf("%d bytes of %d, the digest is %x, want %x: %v",
			size, len(content), digest.Sum(nil), want, err)
	}
}

// terminalOf types into a terminal until the shell has answered.
func terminalOf(t *testing.T, ctx context.Context, box *sandbox.Sandbox) {
	id, err := box.Terminals.Create(ctx, &sandbox.TerminalOptions{Command: "sh", Rows: 24, Cols: 80})
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := box.Terminals.Attach(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	if _, err := terminal.Write([]byte("echo $((6 * 7000))\n")); err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	for !strings.Contains(shown.String(), "42000") {
		event, err := terminal.Next(ctx)
		if err != nil {
			t.Fatalf("%v after %q", err, shown.String())
		}
		shown.Write(event.Data)
	}
}

// certificate writes sandboxes.pem and sandboxes.key for 127.0.0.1, and returns what trusts them.
func certificate(t *testing.T, directory string) *x509.CertPool {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	encoded := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}))
	conformance.Write(t, directory, "sandboxes.pem", encoded)
	conformance.Write(t, directory, "sandboxes.key",
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM([]byte(encoded))
	return trusted
}

// nginx returns the command of an nginx with the page's configuration.
func nginx(t *testing.T, service, directory, address string) *exec.Cmd {
	site := replace(t, block(t, "nginx"), [][2]string{
		{"listen 443 ", "listen " + address + " "},
		{"/etc/ssl/", directory + "/"},
		{"http://127.0.0.1:8080", service},
	})
	conformance.Write(t, directory, "nginx.conf", fmt.Sprintf(`daemon off; worker_processes 1; pid %[1]s/pid;
error_log stderr; events {}
http { access_log off; client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy;
fastcgi_temp_path %[1]s/fastcgi; uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
%[2]s}
`, directory, site))
	return exec.Command(reverseProxy(t, "usr/sbin/nginx"),
		"-e", "stderr", "-p", directory, "-c", directory+"/nginx.conf", "-g", "user root;")
}

// caddy returns the command of a Caddy with the page's configuration.
func caddy(t *testing.T, service, directory, address string) *exec.Cmd {
	site := replace(t, block(t, "caddy"), [][2]string{
		{"sandboxes.example.com {", fmt.Sprintf("https://%s {\n\ttls %[2]s/sandboxes.pem %[2]s/sandboxes.key",
			address, directory)},
		{"127.0.0.1:8080", strings.TrimPrefix(service, "http://")},
	})
	conformance.Write(t, directory, "Caddyfile", "{\n\tadmin off\n\tauto_https disable_redirects\n}\n"+site)
	command := exec.Command(reverseProxy(t, "usr/bin/caddy"), "run", "--config", directory+"/Caddyfile",
		"--adapter", "caddyfile")
	command.Env = append(os.Environ(), "HOME="+directory, "XDG_DATA_HOME="+directory, "XDG_CONFIG_HOME="+directory)
	return command
}

// block returns the one block of docs/operate.md in that language.
func block(t *testing.T, language string) string {
	_, after, found := strings.Cut(conformance.ReadPage(t, "docs/operate.md"), "\n```"+language+"\n")
	content, _, ended := strings.Cut(after, "\n```")
	if !found || !ended {
		t.Fatalf("docs/operate.md has no block in %s", language)
	}
	return content + "\n"
}

// replace makes each change, which must find its text.
func replace(t *testing.T, text string, changes [][2]string) string {
	for _, change := range changes {
		if !strings.Contains(text, change[0]) {
			t.Fatalf("docs/operate.md has no %q any more", change[0])
		}
		text = strings.ReplaceAll(text, change[0], change[1])
	}
	return text
}

// reverseProxy returns the path of a program that scripts/reverse_proxies.sh has put there.
func reverseProxy(t *testing.T, name string) string {
	path := filepath.Join(filepath.Dir(localengine.Archives()), "reverse-proxies", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: scripts/reverse_proxies.sh makes it", err)
	}
	return path
}
