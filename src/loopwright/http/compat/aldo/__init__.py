"""Routes of approvals, run trees and the assistant, as ALDO clients call them."""
