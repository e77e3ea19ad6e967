// Package bodies tests what becomes of the bodies of requests on their way through the service, the
// ingress and execd, whenever the server at the end answers.
package bodies
